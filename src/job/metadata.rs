//! What is noted on a job while it lives: small facts under string keys.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::JobError;

/// A fact noted on a job.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(untagged))]
#[non_exhaustive]
pub enum MetadataValue {
    /// Text.
    Text(Arc<str>),
    /// A whole number: a count, an ordinal, milliseconds.
    Integer(i64),
    /// Yes or no.
    Flag(bool),
    /// Whole numbers by name, such as milliseconds by account.
    Table(BTreeMap<String, i64>),
}

impl MetadataValue {
    /// The text, if it is one.
    #[must_use]
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The number, if it is one.
    #[must_use]
    pub fn as_integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The table, if it is one.
    #[must_use]
    pub fn as_table(&self) -> Option<&BTreeMap<String, i64>> {
        match self {
            Self::Table(table) => Some(table),
            _ => None,
        }
    }
}

impl From<&str> for MetadataValue {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for MetadataValue {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl From<i64> for MetadataValue {
    fn from(number: i64) -> Self {
        Self::Integer(number)
    }
}

impl From<bool> for MetadataValue {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl fmt::Display for MetadataValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Integer(number) => write!(f, "{number}"),
            Self::Flag(flag) => write!(f, "{flag}"),
            Self::Table(table) => write!(f, "{table:?}"),
        }
    }
}

/// The runtime notes facts on every job, under keys that are never made or dropped.
type Facts = BTreeMap<Cow<'static, str>, MetadataValue>;

/// The facts on a job, in key order. A clone shares them until one side adds another.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(transparent))]
pub struct Metadata {
    // None while empty: most jobs carry nothing, and a snapshot is taken for every event.
    facts: Option<Arc<Facts>>,
}

/// Keys under which the runtime itself notes facts. Those that begin with [`RESERVED`](Self::RESERVED)
/// are its own: what stands there was noted by the runtime, and nobody else can.
impl Metadata {
    /// What the runtime's own keys begin with. A submission with such a key is refused, and so is a
    /// note under one.
    pub const RESERVED: &'static str = "obs.";
    /// The ordinal of a child in its parent's order of execution (ORD-1).
    pub const ITERATION: &'static str = "iteration";
    /// The type name of the job that submitted this one (DOOR-7).
    pub const CALLER_CLASS: &'static str = "obs.caller_class";
    /// Milliseconds waited, by account, over all attempts (CTX-5).
    pub const WAIT_TIMES: &'static str = "wait_times";
    /// Milliseconds of wall time waited for admission, over all attempts (CTX-5).
    pub const ADMISSION_WAIT: &'static str = "admission_wait_ms";
    /// How many input-side guards judged the job (GRD-4).
    pub const GUARDS_INPUT: &'static str = "obs.guards_input";
    /// How many guards judged the job's output (GRD-4).
    pub const GUARDS_OUTPUT: &'static str = "obs.guards_output";
    /// How many guards judged the answer that the job had judged last (GRD-4). Only on a job that
    /// had one judged.
    pub const GUARDS_VALIDATION: &'static str = "obs.guards_validation";
    /// On a guard's job: the text of what it judges (GRD-3).
    pub const GUARD_TARGET: &'static str = "obs.input";
    /// On a guard's job: `PASS` or `FAIL`, once it has ended; `FAIL` also when it did not come to judge
    /// (GRD-3).
    pub const GUARD_VERDICT: &'static str = "obs.output";
    /// On a guard's job: the id of the job that it gates (GRD-3).
    pub const GATES_JOB: &'static str = "obs.gates_job_id";
    /// On a guard's job: where it stands (GRD-3).
    pub const GATES_PHASE: &'static str = "obs.gates_phase";

    /// No facts.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The fact under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&MetadataValue> {
        self.facts.as_ref()?.get(key)
    }

    /// Notes a fact, in place of an earlier one under the same key.
    pub fn insert(&mut self, key: impl Into<String>, value: impl Into<MetadataValue>) {
        self.edit().insert(Cow::Owned(key.into()), value.into());
    }

    /// As [`insert`](Self::insert), under one of the runtime's own keys.
    pub(crate) fn insert_own(&mut self, key: &'static str, value: impl Into<MetadataValue>) {
        self.edit().insert(Cow::Borrowed(key), value.into());
    }

    /// Takes out facts under keys of the runtime's, from whoever is not.
    ///
    /// # Errors
    /// `InvalidInput` naming the first of them.
    pub(crate) fn take_out_reserved(&mut self) -> Result<(), JobError> {
        let refused = self.iter().try_for_each(|(key, _)| refuse_reserved(key));
        if refused.is_err() {
            self.edit()
                .retain(|key, _| !key.starts_with(Self::RESERVED));
        }
        refused
    }

    /// Adds to the number under `name` in the table under `key`.
    pub(crate) fn add_to_table(&mut self, key: &str, name: &str, amount: i64) {
        let entry = self
            .edit()
            .entry(Cow::Owned(key.to_owned()))
            .or_insert_with(|| MetadataValue::Table(BTreeMap::new()));
        if !matches!(entry, MetadataValue::Table(_)) {
            *entry = MetadataValue::Table(BTreeMap::new());
        }
        if let MetadataValue::Table(table) = entry {
            let sum = table.entry(name.to_owned()).or_insert(0);
            *sum = sum.saturating_add(amount);
        }
    }

    /// Adds to the number under `key`.
    pub(crate) fn add(&mut self, key: &str, amount: i64) {
        let sum = self
            .get(key)
            .and_then(MetadataValue::as_integer)
            .unwrap_or(0)
            .saturating_add(amount);
        self.insert(key, sum);
    }

    /// Every fact, in key order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &MetadataValue)> {
        self.facts
            .iter()
            .flat_map(|facts| facts.iter().map(|(key, value)| (&**key, value)))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.facts.as_ref().is_none_or(|facts| facts.is_empty())
    }

    fn edit(&mut self) -> &mut Facts {
        Arc::make_mut(self.facts.get_or_insert_default())
    }
}

/// Refuses a key of the runtime's, from whoever is not.
pub(crate) fn refuse_reserved(key: &str) -> Result<(), JobError> {
    if key.starts_with(Metadata::RESERVED) {
        return Err(JobError::invalid_input(
            "metadata",
            key,
            "keys that begin with `obs.` are the runtime's own: choose another",
        ));
    }
    Ok(())
}

impl<K: Into<String>, V: Into<MetadataValue>> FromIterator<(K, V)> for Metadata {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        let mut metadata = Self::new();
        for (key, value) in pairs {
            metadata.insert(key, value);
        }
        metadata
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clone_keeps_what_it_had_when_the_original_grows() {
        let mut original: Metadata = [("a", 1_i64)].into_iter().collect();
        let copy = original.clone();
        original.insert("b", "two");
        assert!(copy.get("b").is_none());
        assert_eq!(
            original.get("b").and_then(MetadataValue::as_text),
            Some("two")
        );
    }

    #[test]
    fn a_key_is_the_same_whoever_owns_it() {
        let mut metadata = Metadata::new();
        metadata.insert_own(Metadata::GUARDS_INPUT, 0);
        metadata.insert(Metadata::GUARDS_INPUT.to_owned(), 2);
        metadata.insert("a", true);
        metadata.insert_own(Metadata::ITERATION, 1);
        metadata.insert_own(Metadata::GUARDS_INPUT, 3);
        let facts: Vec<_> = metadata.iter().collect();
        assert_eq!(
            facts,
            [
                ("a", &MetadataValue::Flag(true)),
                (Metadata::ITERATION, &MetadataValue::Integer(1)),
                (Metadata::GUARDS_INPUT, &MetadataValue::Integer(3)),
            ]
        );
    }

    #[test]
    fn tables_sum_by_name() {
        let mut metadata = Metadata::new();
        metadata.add_to_table("wait_times", "http", 100);
        metadata.add_to_table("wait_times", "http", 50);
        metadata.add_to_table("wait_times", "db:default", 7);
        let table = metadata
            .get("wait_times")
            .and_then(MetadataValue::as_table)
            .unwrap();
        assert_eq!(table["http"], 150);
        assert_eq!(table["db:default"], 7);
    }
}
