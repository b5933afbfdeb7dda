//! A job's need of a model, by slot, and what it costs to reserve (`BIND`).

use super::grade::{Depth, Grade, OutputSize};
use super::spec::ModelSpec;
use crate::error::{ErrorKind, JobError};

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

/// An estimate of how many tokens a text is: a quarter of its bytes, rounded up. No tokenizer
/// agrees with it exactly.
#[must_use]
pub fn estimate_tokens(text: &str) -> u32 {
    u32::try_from(text.len().div_ceil(4)).unwrap_or(u32::MAX)
}

/// What a job asked for under one slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ModelNeed {
    pub(crate) slot: ModelSlot,
    pub(crate) grade: Grade,
    pub(crate) depth: Depth,
    pub(crate) input_tokens: u32,
    pub(crate) output: OutputSize,
}

/// What a resolved need takes from the model's account, and the ceiling that its client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reservation {
    pub(crate) input: u32,
    pub(crate) output: u32,
    pub(crate) thinking: u32,
}

impl ModelNeed {
    /// The price of this need on a model: input, output budget and thinking budget (BIND-2).
    ///
    /// # Errors
    /// `ContextOverflow` when the input alone leaves no room in the model's window.
    pub(crate) fn price(&self, spec: &ModelSpec) -> Result<Reservation, JobError> {
        if self.input_tokens >= spec.context_tokens {
            return Err(JobError::from_kind(ErrorKind::ContextOverflow {
                message: format!(
                    "an input of about {} tokens does not fit the context window of {} ({} tokens)",
                    self.input_tokens, spec.id, spec.context_tokens
                ),
            }));
        }
        Ok(Reservation {
            input: self.input_tokens,
            output: self.output.tokens(spec.max_output_tokens),
            thinking: spec.thinking_budget(self.depth),
        })
    }
}

impl Reservation {
    /// What the account is debited.
    pub(crate) fn total(self) -> u32 {
        self.input
            .saturating_add(self.output)
            .saturating_add(self.thinking)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::models::ModelBound;
    use std::num::NonZeroU32;

    fn spec() -> ModelSpec {
        let bound = ModelBound::Concurrency(NonZeroU32::MIN);
        ModelSpec::new("m", "p", bound)
            .unwrap()
            .limits(10_000, 8_192)
            .unwrap()
    }

    fn need(depth: Depth, input_tokens: u32) -> ModelNeed {
        ModelNeed {
            slot: ModelSlot::new("s"),
            grade: Grade::Small,
            depth,
            input_tokens,
            output: OutputSize::Verdict,
        }
    }

    // case DEM-04
    #[test]
    fn a_price_is_input_and_output_and_thinking() {
        assert_eq!(
            need(Depth::Immediate, 100).price(&spec()).unwrap().total(),
            1_124
        );
        assert_eq!(
            need(Depth::Standard, 100).price(&spec()).unwrap().total(),
            2_148
        );
    }

    // case DEM-05
    #[test]
    fn an_input_past_the_window_is_refused_when_it_is_priced() {
        let error = need(Depth::Immediate, 10_000).price(&spec()).unwrap_err();
        assert!(error.to_string().contains("context window"), "{error}");
    }

    #[test]
    fn an_estimate_rounds_up_and_never_overflows() {
        assert_eq!(estimate_tokens(""), 0);
        assert_eq!(estimate_tokens("abcde"), 2);
    }
}
