//! The models of a deployment (`MOD-3`, `MOD-4`): validated whole, or not at all.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use super::grade::{Grade, ModelKind};
use super::spec::{ModelSpec, ModelStatus};
use crate::error::JobError;

#[cfg(feature = "catalog-file")]
mod file;
mod starter;
#[cfg(feature = "catalog-file")]
mod strict_json;

/// The models of a deployment, and which of them it prefers for what. A clone is the same catalog.
///
/// ```
/// use nucleo_runtime::models::{Catalog, Grade, ModelBound, ModelSpec, Prices};
/// use std::num::NonZeroU32;
///
/// let quota = ModelBound::Quota {
///     tokens_per_minute: NonZeroU32::new(400_000).unwrap(),
///     requests_per_minute: NonZeroU32::new(400),
/// };
/// let small = ModelSpec::new("acme-small", "acme", quota)?
///     .grade(Grade::Small)
///     .prices(Prices::per_million("USD", 0.25, 1.25)?);
/// let catalog = Catalog::builder()
///     .model(small)
///     .pin(Grade::Small, ["acme-small"])
///     .build()?;
/// assert_eq!(catalog.get("acme-small").map(|spec| spec.grade), Some(Grade::Small));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Catalog {
    inner: Arc<Entries>,
}

#[derive(Default)]
struct Entries {
    entries: Vec<Arc<ModelSpec>>,
    by_id: HashMap<String, Arc<ModelSpec>>,
    pins: BTreeMap<Seats, Vec<Arc<ModelSpec>>>,
}

/// What entries are pinned for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Seats {
    Grade(Grade),
    Embeddings,
    Decision,
}

impl Seats {
    fn of(kind: ModelKind, grade: Grade) -> Self {
        match kind {
            ModelKind::Llm => Self::Grade(grade),
            ModelKind::Embeddings => Self::Embeddings,
            ModelKind::Decision => Self::Decision,
        }
    }

    fn kind(self) -> ModelKind {
        match self {
            Self::Grade(_) => ModelKind::Llm,
            Self::Embeddings => ModelKind::Embeddings,
            Self::Decision => ModelKind::Decision,
        }
    }
}

impl fmt::Display for Seats {
    /// As a file spells it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Grade(grade) => write!(f, "pins.{}", format!("{grade:?}").to_lowercase()),
            Self::Embeddings => f.write_str("pins.embeddings"),
            Self::Decision => f.write_str("pins.decision"),
        }
    }
}

/// How a list of pins is spelt in a file, for messages about it.
pub(crate) fn pin_name(kind: ModelKind, grade: Grade) -> String {
    Seats::of(kind, grade).to_string()
}

impl Catalog {
    /// Begins a catalog.
    pub fn builder() -> CatalogBuilder {
        CatalogBuilder::default()
    }

    /// A catalog to try things out with: made-up models of every grade, one for embeddings and one
    /// for decisions, all of the provider `scripted`, which no network is behind. They are priced in
    /// USD. Give the builder a client for `scripted`, such as a
    /// [`ScriptedClient`](crate::llm::ScriptedClient).
    #[must_use]
    pub fn starter() -> Self {
        starter::catalog()
    }

    /// Reads a catalog from TOML.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its entry.
    #[cfg(feature = "catalog-file")]
    pub fn from_toml(text: &str) -> Result<Self, CatalogError> {
        file::from_toml(text)
    }

    /// Reads a catalog from JSON, which has the shape of the TOML.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its entry.
    #[cfg(feature = "catalog-file")]
    pub fn from_json(text: &str) -> Result<Self, CatalogError> {
        file::from_json(text)
    }

    /// Reads a catalog from a file: JSON when its name ends in `.json`, else TOML.
    ///
    /// # Errors
    /// That the file cannot be read, or everything that is wrong with it, each with its entry.
    #[cfg(feature = "catalog-file")]
    pub fn read(path: impl AsRef<std::path::Path>) -> Result<Self, CatalogError> {
        file::read(path.as_ref())
    }

    /// Every entry, in the order in which they were given. Closed ones are among them: what was
    /// called is still priced against them.
    pub fn entries(&self) -> impl Iterator<Item = &Arc<ModelSpec>> {
        self.inner.entries.iter()
    }

    /// The entry of this id.
    #[must_use]
    pub fn get(&self, id: &str) -> Option<&Arc<ModelSpec>> {
        self.inner.by_id.get(id)
    }

    /// The entries that are preferred for a grade, the first of all first.
    #[must_use]
    pub fn pins(&self, grade: Grade) -> &[Arc<ModelSpec>] {
        self.pinned(Seats::Grade(grade))
    }

    /// The entries that are preferred for embeddings.
    #[must_use]
    pub fn embeddings_pins(&self) -> &[Arc<ModelSpec>] {
        self.pinned(Seats::Embeddings)
    }

    /// The entries that are preferred for decisions.
    #[must_use]
    pub fn decision_pins(&self) -> &[Arc<ModelSpec>] {
        self.pinned(Seats::Decision)
    }

    pub(crate) fn pins_for(&self, kind: ModelKind, grade: Grade) -> &[Arc<ModelSpec>] {
        self.pinned(Seats::of(kind, grade))
    }

    fn pinned(&self, seats: Seats) -> &[Arc<ModelSpec>] {
        self.inner.pins.get(&seats).map_or(&[], Vec::as_slice)
    }

    /// Begins a catalog that has all of this one.
    pub(crate) fn extend(&self) -> CatalogBuilder {
        let mut builder = CatalogBuilder::default();
        builder
            .entries
            .extend(self.entries().map(|spec| ModelSpec::clone(spec)));
        for (seats, specs) in &self.inner.pins {
            let ids = specs.iter().map(|spec| spec.id.clone());
            builder.pins.push((*seats, ids.collect()));
        }
        builder
    }
}

impl Default for Catalog {
    /// One without models.
    fn default() -> Self {
        Self {
            inner: Arc::default(),
        }
    }
}

impl fmt::Debug for Catalog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Catalog")
            .field("entries", &self.inner.by_id.len())
            .field("pins", &self.inner.pins)
            .finish()
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entries").finish_non_exhaustive()
    }
}

/// What a [`Catalog`] is made of; see [`Catalog::builder`].
#[derive(Debug, Default)]
#[must_use = "nothing is checked until `build` is called"]
pub struct CatalogBuilder {
    entries: Vec<ModelSpec>,
    pins: Vec<(Seats, Vec<String>)>,
    faults: Vec<CatalogFault>,
}

impl CatalogBuilder {
    /// Adds an entry.
    pub fn model(mut self, spec: ModelSpec) -> Self {
        self.entries.push(spec);
        self
    }

    /// Prefers these entries for a grade, the first of all first, after those pinned before. Each
    /// must be of the grade or a higher one.
    pub fn pin<I: Into<String>>(self, grade: Grade, ids: impl IntoIterator<Item = I>) -> Self {
        self.pin_for(Seats::Grade(grade), ids)
    }

    /// Prefers these entries for embeddings.
    pub fn pin_embeddings<I: Into<String>>(self, ids: impl IntoIterator<Item = I>) -> Self {
        self.pin_for(Seats::Embeddings, ids)
    }

    /// Prefers these entries for decisions.
    pub fn pin_decision<I: Into<String>>(self, ids: impl IntoIterator<Item = I>) -> Self {
        self.pin_for(Seats::Decision, ids)
    }

    /// Adds an entry that is the preferred one of its grade or kind.
    pub(crate) fn pinned_model(self, spec: ModelSpec) -> Self {
        let (seats, id) = (Seats::of(spec.kind, spec.grade), spec.id.clone());
        self.model(spec).pin_for(seats, [id])
    }

    fn pin_for<I: Into<String>>(mut self, seats: Seats, ids: impl IntoIterator<Item = I>) -> Self {
        self.pins
            .push((seats, ids.into_iter().map(Into::into).collect()));
        self
    }

    /// Checks all of it.
    ///
    /// # Errors
    /// Everything that is wrong with it, each with its entry.
    pub fn build(mut self) -> Result<Catalog, CatalogError> {
        let mut made = Entries::default();
        for (index, spec) in std::mem::take(&mut self.entries).into_iter().enumerate() {
            let mut faults = spec.faults();
            let mut entry = format!("model '{}'", spec.id);
            let taken = made.by_id.contains_key(&spec.id);
            if taken {
                // The id does not say which of them it is.
                entry = format!("{entry} (entry {})", index + 1);
                faults.push("the id is taken by an earlier entry".to_owned());
            }
            self.faults
                .extend(faults.into_iter().map(|problem| CatalogFault {
                    entry: entry.clone(),
                    problem,
                }));
            if taken {
                continue;
            }
            let spec = Arc::new(spec);
            made.by_id.insert(spec.id.clone(), Arc::clone(&spec));
            made.entries.push(spec);
        }
        for (seats, ids) in std::mem::take(&mut self.pins) {
            for id in ids {
                let pinned = made.pins.entry(seats).or_default();
                match judge_pin(seats, made.by_id.get(&id), pinned) {
                    Ok(spec) => pinned.push(spec),
                    Err(problem) => self.faults.push(CatalogFault {
                        entry: seats.to_string(),
                        problem: format!("'{id}' {problem}"),
                    }),
                }
            }
        }
        if self.faults.is_empty() {
            Ok(Catalog {
                inner: Arc::new(made),
            })
        } else {
            Err(CatalogError {
                file: None,
                faults: self.faults,
            })
        }
    }

    #[cfg(feature = "catalog-file")]
    fn fault(&mut self, fault: CatalogFault) {
        self.faults.push(fault);
    }
}

fn judge_pin(
    seats: Seats,
    spec: Option<&Arc<ModelSpec>>,
    pinned: &[Arc<ModelSpec>],
) -> Result<Arc<ModelSpec>, String> {
    let Some(spec) = spec else {
        return Err("is no entry of the catalog".to_owned());
    };
    if spec.kind != seats.kind() {
        return Err(format!("is of kind {:?}", spec.kind));
    }
    if spec.status != ModelStatus::Open {
        return Err(format!("is {:?} and never served", spec.status));
    }
    if let Seats::Grade(grade) = seats
        && spec.grade < grade
    {
        return Err(format!("is of the lower grade {:?}", spec.grade));
    }
    if pinned.contains(spec) {
        return Err("is pinned twice".to_owned());
    }
    Ok(Arc::clone(spec))
}

/// One thing that is wrong with a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CatalogFault {
    /// Where: `model '<id>'`, the list of pins, or the file.
    pub entry: String,
    /// What.
    pub problem: String,
}

impl fmt::Display for CatalogFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.entry, self.problem)
    }
}

/// Everything that is wrong with a catalog.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogError {
    /// Where it was read from.
    file: Option<String>,
    faults: Vec<CatalogFault>,
}

impl CatalogError {
    /// What is wrong, in the order of the catalog.
    #[must_use]
    pub fn faults(&self) -> &[CatalogFault] {
        &self.faults
    }

    #[cfg(feature = "catalog-file")]
    fn in_file(mut self, file: String) -> Self {
        self.file = Some(file);
        self
    }
}

impl fmt::Display for CatalogError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.file {
            Some(file) => write!(f, "the catalog {file} cannot be used: ")?,
            None => f.write_str("the catalog cannot be used: ")?,
        }
        for (index, fault) in self.faults.iter().enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{fault}")?;
        }
        Ok(())
    }
}

impl std::error::Error for CatalogError {}

impl From<CatalogError> for JobError {
    fn from(error: CatalogError) -> Self {
        JobError::system("catalog", error.to_string()).with_source(error)
    }
}
