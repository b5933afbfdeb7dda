//! A cap on how much goes in or comes out.

use crate::error::JobError;
use crate::guard::{ContentGuard, Gate, Guard, GuardPhase};

/// Refuses a text above so many characters. On an input it bounds what a model may send, on an
/// output what it will have to read.
#[derive(Clone, Copy, Debug)]
pub struct PayloadSizeCap {
    max_chars: usize,
}

impl PayloadSizeCap {
    /// Lets pass up to this many characters.
    #[must_use]
    pub fn new(max_chars: usize) -> Self {
        Self { max_chars }
    }
}

impl Guard for PayloadSizeCap {}

impl ContentGuard for PayloadSizeCap {
    type Target = str;

    fn judge(&self, text: &str, gate: &Gate<'_>) -> Result<(), JobError> {
        let length = text.chars().count();
        if length <= self.max_chars {
            return Ok(());
        }
        let side = match gate.phase() {
            Some(GuardPhase::ContentOutput) => "Output",
            _ => "Input",
        };
        let tool = gate.gated().map_or("this tool", |gated| gated.type_name());
        Err(JobError::guardrail(format!(
            "{side} of {length} characters exceeds the cap of {} for {tool}",
            self.max_chars
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // case GRD-27
    #[test]
    fn a_cap_counts_characters_and_names_both_numbers() {
        let cap = PayloadSizeCap::new(4);
        let judge = |text: &str| cap.judge(text, &Gate::outside());
        assert!(judge("").is_ok());
        assert!(judge("äöüß").is_ok());
        let refusal = judge("12345").unwrap_err();
        assert!(refusal.is_correctable());
        assert_eq!(
            refusal.llm_message(),
            "Guardrail violation: Input of 5 characters exceeds the cap of 4 for this tool"
        );
    }
}
