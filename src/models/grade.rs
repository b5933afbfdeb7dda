//! The words for how much model: how capable, how hard to work, how long an answer (`MOD-1`).

/// How capable a model has to be: a floor, never a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Grade {
    /// The least.
    Micro,
    /// Short, plain tasks.
    Small,
    /// Everyday work.
    Medium,
    /// Demanding work.
    Large,
    /// More still.
    Xl,
    /// The most that has a name.
    Mega,
}

/// How hard a model is to work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Depth {
    /// Answer at once, without thinking.
    Immediate,
    /// Think briefly.
    Quick,
    /// Think as usual. The default.
    #[default]
    Standard,
    /// Think at length.
    Thorough,
    /// Think as long as it takes.
    UltraThorough,
}

impl Depth {
    /// The least that is ever budgeted for thinking, where anything is (MOD-5).
    const MIN_THINKING: u32 = 1_024;

    /// The tokens budgeted for thinking on a model that writes at most `max_output` (MOD-5).
    #[must_use]
    pub fn thinking_budget(self, max_output: u32) -> u32 {
        let share = match self {
            Self::Immediate => return 0,
            Self::Quick => 16,
            Self::Standard => 8,
            Self::Thorough | Self::UltraThorough => 4,
        };
        (max_output / share).max(Self::MIN_THINKING)
    }
}

/// How long an answer is asked for, in tokens; each is capped at the model's own limit (MOD-1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OutputSize {
    /// A yes or no with a reason: 1 024.
    Verdict,
    /// A paragraph or two: 4 096. The default.
    #[default]
    Compact,
    /// A few pages: 16 384.
    Standard,
    /// A long document: 32 768.
    Extended,
    /// All that the model can write.
    Max,
}

impl OutputSize {
    /// The tokens of this size on a model that writes at most `max_output`.
    #[must_use]
    pub fn tokens(self, max_output: u32) -> u32 {
        let asked = match self {
            Self::Verdict => 1_024,
            Self::Compact => 4_096,
            Self::Standard => 16_384,
            Self::Extended => 32_768,
            Self::Max => max_output,
        };
        asked.min(max_output)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_capped_at_the_models_own_limit() {
        assert_eq!(OutputSize::Verdict.tokens(8_192), 1_024);
        assert_eq!(OutputSize::Extended.tokens(8_192), 8_192);
        assert_eq!(OutputSize::Max.tokens(8_192), 8_192);
    }

    #[test]
    fn thinking_follows_the_depth_and_has_a_floor() {
        assert_eq!(Depth::Immediate.thinking_budget(64_000), 0);
        assert_eq!(Depth::Quick.thinking_budget(64_000), 4_000);
        assert_eq!(Depth::Standard.thinking_budget(64_000), 8_000);
        assert_eq!(Depth::UltraThorough.thinking_budget(64_000), 16_000);
        assert_eq!(Depth::Quick.thinking_budget(8_192), 1_024);
    }
}
