//! A job's need of a model, by slot, and what it costs to reserve (`BIND`).

use std::sync::{Arc, OnceLock};

use super::cost::{Cost, Usage};
use super::grade::{Depth, Floor, ModelKind, OutputSize};
use super::spec::{InputKind, ModelSpec};
use super::tokens::TokenCounter;
use crate::error::{ContextOverflow, ErrorKind, JobError};

/// The name under which a job asks for a model and finds it again.
///
/// ```
/// use nucleo_runtime::models::ModelSlot;
/// const SUMMARY: ModelSlot = ModelSlot::new("summary");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ModelSlot {
    name: &'static str,
}

impl ModelSlot {
    /// A slot of this name; two slots of one name in one job are refused at its submission.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name }
    }

    /// The name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

/// How much goes in.
#[derive(Clone, Debug)]
pub(crate) enum InputSize {
    Tokens(u32),
    /// Counted when the binding is priced, by the dispatcher's counter.
    Prompt(Arc<str>),
}

/// Which model is asked for.
#[derive(Clone, Debug)]
pub(crate) enum Wanted {
    Floor(Floor),
    /// Embeddings and decisions have no grade.
    Any,
    Pinned(Arc<ModelSpec>),
}

/// One need of a model: what was asked for, and which model it became.
///
/// Each call of a job's `requirements` mints fresh ones. The dispatcher resolves a binding once, before
/// the attempt is admitted.
#[derive(Debug)]
pub struct ModelBinding {
    slot: ModelSlot,
    kind: ModelKind,
    wanted: Wanted,
    depth: Depth,
    input: InputSize,
    output: Option<OutputSize>,
    images: bool,
    documents: bool,
    resolved: OnceLock<Resolved>,
}

#[derive(Debug)]
struct Resolved {
    spec: Arc<ModelSpec>,
    reservation: Reservation,
}

/// What a resolved binding takes from the model's account, in tokens (BIND-2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// What goes in.
    pub input: u32,
    /// The answer.
    pub output: u32,
    /// The thinking before it.
    pub thinking: u32,
}

impl ModelBinding {
    pub(crate) fn llm(
        slot: ModelSlot,
        wanted: Wanted,
        depth: Depth,
        input: InputSize,
        output: OutputSize,
    ) -> Self {
        Self {
            slot,
            kind: ModelKind::Llm,
            wanted,
            depth,
            input,
            output: Some(output),
            images: false,
            documents: false,
            resolved: OnceLock::new(),
        }
    }

    /// A need of a model that writes nothing to speak of.
    pub(crate) fn plain(slot: ModelSlot, kind: ModelKind, tokens: u32) -> Self {
        Self {
            slot,
            kind,
            wanted: Wanted::Any,
            depth: Depth::Immediate,
            input: InputSize::Tokens(tokens),
            output: None,
            images: false,
            documents: false,
            resolved: OnceLock::new(),
        }
    }

    pub(crate) fn sends(&mut self, input: InputKind) {
        match input {
            InputKind::Images => self.images = true,
            InputKind::Documents => self.documents = true,
        }
    }

    /// The slot.
    #[must_use]
    pub fn slot(&self) -> ModelSlot {
        self.slot
    }

    /// What the model is for.
    #[must_use]
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    pub(crate) fn wanted(&self) -> &Wanted {
        &self.wanted
    }

    /// How hard it is to work.
    #[must_use]
    pub fn depth(&self) -> Depth {
        self.depth
    }

    /// The model that the job insists on, where it does.
    #[must_use]
    pub fn pinned(&self) -> Option<&Arc<ModelSpec>> {
        match &self.wanted {
            Wanted::Pinned(spec) => Some(spec),
            _ => None,
        }
    }

    /// How capable the model has to be; `None` for one that is pinned or has no grade.
    #[must_use]
    pub fn floor(&self) -> Option<Floor> {
        match self.wanted {
            Wanted::Floor(floor) => Some(floor),
            _ => None,
        }
    }

    /// Whether the request was declared to carry this besides text.
    #[must_use]
    pub fn declares(&self, input: InputKind) -> bool {
        match input {
            InputKind::Images => self.images,
            InputKind::Documents => self.documents,
        }
    }

    /// The model that it was resolved to; `None` before, and for ever in the requirements that were
    /// asked for at the submission.
    #[must_use]
    pub fn resolved(&self) -> Option<&Arc<ModelSpec>> {
        self.resolved.get().map(|resolved| &resolved.spec)
    }

    /// What it takes from the model's account; `None` until it is resolved.
    #[must_use]
    pub fn reservation(&self) -> Option<Reservation> {
        self.resolved.get().map(|resolved| resolved.reservation)
    }

    /// Writes the model into the binding.
    ///
    /// # Errors
    /// `System` when it has one: a job that hands out the same requirements twice would have one
    /// attempt's model be another's.
    pub(crate) fn resolve(
        &self,
        spec: Arc<ModelSpec>,
        reservation: Reservation,
    ) -> Result<(), JobError> {
        self.resolved
            .set(Resolved { spec, reservation })
            .map_err(|_| {
                JobError::system(
                    "requirements",
                    format!(
                        "the binding of the slot '{}' has been resolved before: make fresh \
                         requirements at each call",
                        self.slot.name
                    ),
                )
            })
    }

    /// The price of this need on a model: input, output budget and thinking budget (BIND-2). The
    /// ceiling of the answer is at least `raised`, as far as the model goes: an attempt that was cut
    /// off is run again with more (RR-3).
    ///
    /// # Errors
    /// `ContextOverflow` when the input alone leaves no room in the model's window.
    pub(crate) fn price(
        &self,
        spec: &ModelSpec,
        counter: &dyn TokenCounter,
        raised: u32,
    ) -> Result<Reservation, JobError> {
        let input = match &self.input {
            InputSize::Tokens(tokens) => *tokens,
            InputSize::Prompt(text) => counter.count(text),
        };
        // Texts to embed are sent in as many requests as they need.
        if input >= spec.context_tokens && self.kind != ModelKind::Embeddings {
            return Err(JobError::from_kind(ErrorKind::ContextOverflow(
                ContextOverflow::estimated(&*spec.id, input.into(), spec.context_tokens.into()),
            )));
        }
        let output = self
            .output
            .map_or(0, |size| size.tokens(spec.max_output_tokens));
        let thinking = match self.output {
            Some(_) => spec.thinking_tokens(self.depth),
            None => 0,
        };
        let more = raised
            .min(spec.max_output_tokens)
            .saturating_sub(output.saturating_add(thinking));
        Ok(Reservation {
            input,
            output: output.saturating_add(more),
            thinking,
        })
    }
}

impl Reservation {
    /// What the account is debited.
    #[must_use]
    pub fn total(self) -> u32 {
        self.input.saturating_add(self.ceiling())
    }

    /// The most that the model may write, thinking included.
    #[must_use]
    pub fn ceiling(self) -> u32 {
        self.output.saturating_add(self.thinking)
    }

    /// What it costs if all of it is used; `None` on a model without a price.
    #[must_use]
    pub fn cost(self, spec: &ModelSpec) -> Option<Cost> {
        let usage = Usage::new(self.input.into(), self.ceiling().into());
        spec.prices.as_ref().map(|prices| prices.cost(&usage))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::tokens::ByteEstimate;
    use crate::models::{Grade, ModelBound};
    use std::num::NonZeroU32;

    const SLOT: ModelSlot = ModelSlot::new("s");

    fn spec() -> ModelSpec {
        let bound = ModelBound::Concurrency(NonZeroU32::MIN);
        ModelSpec::new("m", "p", bound)
            .unwrap()
            .limits(10_000, 8_192)
            .unwrap()
    }

    fn binding(depth: Depth, input: InputSize) -> ModelBinding {
        let floor = Wanted::Floor(Grade::Small.into());
        ModelBinding::llm(SLOT, floor, depth, input, OutputSize::Verdict)
    }

    fn total(binding: &ModelBinding) -> u32 {
        let price = binding.price(&spec(), &ByteEstimate, 0);
        price.unwrap().total()
    }

    // case DEM-04
    #[test]
    fn a_price_is_input_and_output_and_thinking() {
        let tokens = || InputSize::Tokens(100);
        assert_eq!(total(&binding(Depth::Immediate, tokens())), 1_124);
        assert_eq!(total(&binding(Depth::Standard, tokens())), 2_148);
        let prompt = InputSize::Prompt("x".repeat(401).into());
        assert_eq!(total(&binding(Depth::Immediate, prompt)), 101 + 1_024);
        let plain = ModelBinding::plain(SLOT, ModelKind::Embeddings, 500);
        assert_eq!(total(&plain), 500);
        let pinned = ModelBinding::llm(
            SLOT,
            Wanted::Pinned(Arc::new(spec())),
            Depth::Immediate,
            InputSize::Tokens(64),
            OutputSize::Compact,
        );
        assert_eq!(total(&pinned), 64 + 4_096);
    }

    // case DEM-05
    #[test]
    fn an_input_past_the_window_is_refused_when_it_is_priced() {
        let binding = binding(Depth::Immediate, InputSize::Tokens(10_000));
        let error = binding.price(&spec(), &ByteEstimate, 0).unwrap_err();
        assert!(!error.is_correctable());
        assert!(error.to_string().contains("context window"), "{error}");
    }

    #[test]
    fn a_raised_ceiling_is_taken_as_far_as_the_model_goes() {
        let binding = binding(Depth::Standard, InputSize::Tokens(100));
        let ceiling = |raised| {
            let price = binding.price(&spec(), &ByteEstimate, raised).unwrap();
            assert_eq!(price.thinking, 1_024);
            price.ceiling()
        };
        assert_eq!(ceiling(1_000), 2_048);
        assert_eq!(ceiling(4_096), 4_096);
        assert_eq!(ceiling(99_999), 8_192);
    }

    #[test]
    fn a_binding_is_resolved_once() {
        let binding = binding(Depth::Immediate, InputSize::Tokens(1));
        assert!(binding.resolved().is_none() && binding.reservation().is_none());
        let price = binding.price(&spec(), &ByteEstimate, 0).unwrap();
        binding.resolve(Arc::new(spec()), price).unwrap();
        assert_eq!(binding.resolved().map(|spec| &*spec.id), Some("m"));
        assert!(binding.resolve(Arc::new(spec()), price).is_err());
    }
}
