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

impl Grade {
    /// Every grade, from the least to the most.
    pub const ALL: [Self; 6] = [
        Self::Micro,
        Self::Small,
        Self::Medium,
        Self::Large,
        Self::Xl,
        Self::Mega,
    ];

    /// The grades from this one up.
    pub(crate) fn and_above(self) -> impl Iterator<Item = Self> {
        Self::ALL.into_iter().filter(move |grade| *grade >= self)
    }

    /// The next one down.
    pub(crate) fn below(self) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|grade| *grade < self)
    }

    /// The next one up.
    pub(crate) fn above(self) -> Option<Self> {
        Self::ALL.into_iter().find(|grade| *grade > self)
    }
}

/// How capable a model a job asks for: at least a grade, or the best there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Floor {
    /// This grade or a higher one.
    AtLeast(Grade),
    /// The strongest that the deployment serves. Not a grade: which it is depends on the catalog
    /// and on what can be called.
    Ceiling,
}

impl From<Grade> for Floor {
    fn from(grade: Grade) -> Self {
        Self::AtLeast(grade)
    }
}

/// What a model is for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ModelKind {
    /// It answers conversations. The default.
    #[default]
    Llm,
    /// It turns texts into vectors.
    Embeddings,
    /// It chooses among given answers.
    Decision,
}

/// What vectors are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EmbeddingsPurpose {
    /// To look for texts with them.
    Query,
    /// To be found.
    Document,
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
    fn grades_are_a_ladder_and_ceiling_is_no_rung_of_it() {
        assert!(Grade::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        assert_eq!(Grade::Micro.below(), None);
        assert_eq!(Grade::Mega.above(), None);
        assert_eq!(Grade::Small.above(), Some(Grade::Medium));
        assert_eq!(Grade::Xl.and_above().count(), 2);
        assert_eq!(Floor::from(Grade::Small), Floor::AtLeast(Grade::Small));
    }

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
