//! How many tokens a text is (`LLM-6`).

use std::fmt;

/// Counts the tokens of texts before they are sent, to reserve for them.
pub trait TokenCounter: fmt::Debug + Send + Sync + 'static {
    /// How many tokens the text is. It may be called from several threads at once.
    fn count(&self, text: &str) -> u32;
}

/// Bytes of a text that count as one token.
const BYTES_PER_TOKEN: usize = 4;

/// An estimate that needs no vocabulary: a quarter of the bytes, rounded up. No tokenizer agrees with
/// it exactly; on prose in English it tends to be high, on code and on other scripts low.
#[derive(Clone, Copy, Debug, Default)]
pub struct ByteEstimate;

impl TokenCounter for ByteEstimate {
    fn count(&self, text: &str) -> u32 {
        estimate_tokens(text)
    }
}

/// What [`ByteEstimate`] answers.
#[must_use]
pub fn estimate_tokens(text: &str) -> u32 {
    u32::try_from(text.len().div_ceil(BYTES_PER_TOKEN)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_rounds_up() {
        assert_eq!(estimate_tokens(""), 0);
        assert_eq!(estimate_tokens("abcde"), 2);
        assert_eq!(ByteEstimate.count("abcd"), 1);
    }
}
