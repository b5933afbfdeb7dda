//! One model on one provider (`MOD-2`).

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use super::cost::Prices;
use super::grade::{Depth, Grade, ModelKind};
use crate::error::JobError;

/// What limits the use of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ModelBound {
    /// A provider's quota per minute.
    Quota {
        /// Tokens per minute, both directions together.
        tokens_per_minute: NonZeroU32,
        /// Requests per minute; a thousandth of the tokens, at least one, where the provider does
        /// not say (TB-7).
        requests_per_minute: Option<NonZeroU32>,
    },
    /// How many calls a machine of one's own serves at once.
    Concurrency(NonZeroU32),
}

/// Whether an entry is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ModelStatus {
    /// It is. The default.
    #[default]
    Open,
    /// The deployment switched it off.
    Disabled,
    /// Its provider gives it up.
    Deprecated,
    /// Its provider no longer names it.
    Unlisted,
    /// Its endpoint does not answer.
    Unreachable,
}

/// How a model is told how much to think.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Thinking {
    /// It does not think, so nothing is reserved for it.
    None,
    /// By a budget in tokens. The default.
    #[default]
    Budget,
    /// By a word for the effort; the budget is what is reserved for it.
    Effort,
}

/// What a request carries besides text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InputKind {
    /// Pictures.
    Images,
    /// Whole documents, such as PDF.
    Documents,
}

/// One model on one provider, as the deployment knows it. Two are equal when their ids are.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ModelSpec {
    /// The entry's id, which also names its account.
    pub id: String,
    /// What the weights are called: entries that share it are one model on several endpoints, and
    /// one may stand in for another. The id unless set.
    pub identity: String,
    /// The provider's key.
    pub provider: String,
    /// What the provider calls it. The id unless set.
    pub wire_id: String,
    /// What it is for.
    pub kind: ModelKind,
    /// How capable it is. Means nothing but for an `Llm`.
    pub grade: Grade,
    /// Tokens that fit into one request, input and output together.
    pub context_tokens: u32,
    /// Tokens that it can write at most.
    pub max_output_tokens: u32,
    /// Whether it takes pictures.
    pub vision: bool,
    /// Whether it takes whole documents.
    pub documents: bool,
    /// Whether its provider uses what it is sent for purposes of its own.
    pub shares_data: bool,
    /// What limits its use.
    pub bound: ModelBound,
    /// What it charges; `None` when that is not known.
    pub prices: Option<Prices>,
    /// How it is told how much to think.
    pub thinking: Thinking,
    /// How many tokens it thinks with, by depth; where it does not say, the usual share of what it
    /// can write.
    pub thinking_budgets: BTreeMap<Depth, u32>,
    /// Whether it is served.
    pub status: ModelStatus,
}

impl ModelSpec {
    /// A model of `provider`: an open `Llm` of grade `Medium`, with a window of 200 000 tokens of
    /// which it writes at most 32 768, without a price.
    ///
    /// # Errors
    /// `InvalidInput` for an id or provider that is blank, begins or ends with a blank, or has a control
    /// character in it.
    pub fn new(id: &str, provider: &str, bound: ModelBound) -> Result<Self, JobError> {
        for (field, value) in [("id", id), ("provider", provider)] {
            if let Some(rule) = name_fault(value) {
                return Err(JobError::invalid_input(field, value, rule));
            }
        }
        Ok(Self::unchecked(id, provider, bound))
    }

    pub(crate) fn unchecked(id: &str, provider: &str, bound: ModelBound) -> Self {
        Self {
            id: id.to_owned(),
            identity: id.to_owned(),
            provider: provider.to_owned(),
            wire_id: id.to_owned(),
            kind: ModelKind::Llm,
            grade: Grade::Medium,
            context_tokens: 200_000,
            max_output_tokens: 32_768,
            vision: false,
            documents: false,
            shares_data: false,
            bound,
            prices: None,
            thinking: Thinking::Budget,
            thinking_budgets: BTreeMap::new(),
            status: ModelStatus::Open,
        }
    }

    /// Sets what the weights are called.
    #[must_use]
    pub fn identity(mut self, identity: impl Into<String>) -> Self {
        self.identity = identity.into();
        self
    }

    /// Sets what the provider calls it.
    #[must_use]
    pub fn wire_id(mut self, wire_id: impl Into<String>) -> Self {
        self.wire_id = wire_id.into();
        self
    }

    /// Sets what it is for.
    #[must_use]
    pub fn kind(mut self, kind: ModelKind) -> Self {
        self.kind = kind;
        self
    }

    /// Sets the grade.
    #[must_use]
    pub fn grade(mut self, grade: Grade) -> Self {
        self.grade = grade;
        self
    }

    /// Sets the window and how much of it the model can write, in tokens.
    ///
    /// # Errors
    /// `InvalidInput` when either is zero or the output is larger than the window.
    pub fn limits(mut self, context_tokens: u32, max_output_tokens: u32) -> Result<Self, JobError> {
        self.context_tokens = context_tokens;
        self.max_output_tokens = max_output_tokens;
        match self.limit_faults().into_iter().next() {
            None => Ok(self),
            Some((field, figure, rule)) => Err(JobError::invalid_input(field, figure, rule)),
        }
    }

    /// Has it take pictures, documents, both or neither. Neither unless set.
    #[must_use]
    pub fn takes(mut self, inputs: impl IntoIterator<Item = InputKind>) -> Self {
        (self.vision, self.documents) = (false, false);
        for input in inputs {
            match input {
                InputKind::Images => self.vision = true,
                InputKind::Documents => self.documents = true,
            }
        }
        self
    }

    /// Says that its provider uses what it is sent for purposes of its own.
    #[must_use]
    pub fn shares_data(mut self, shares: bool) -> Self {
        self.shares_data = shares;
        self
    }

    /// Sets what it charges.
    #[must_use]
    pub fn prices(mut self, prices: Prices) -> Self {
        self.prices = Some(prices);
        self
    }

    /// Sets how it is told how much to think.
    #[must_use]
    pub fn thinking(mut self, thinking: Thinking) -> Self {
        self.thinking = thinking;
        self
    }

    /// Sets with how many tokens it thinks at a depth.
    #[must_use]
    pub fn thinking_budget(mut self, depth: Depth, tokens: u32) -> Self {
        self.thinking_budgets.insert(depth, tokens);
        self
    }

    /// Sets whether it is served.
    #[must_use]
    pub fn status(mut self, status: ModelStatus) -> Self {
        self.status = status;
        self
    }

    /// Whether it takes this besides text.
    #[must_use]
    pub fn accepts(&self, input: InputKind) -> bool {
        match input {
            InputKind::Images => self.vision,
            InputKind::Documents => self.documents,
        }
    }

    /// The tokens that it thinks with at a depth (MOD-5).
    #[must_use]
    pub fn thinking_tokens(&self, depth: Depth) -> u32 {
        if self.thinking == Thinking::None || self.kind != ModelKind::Llm {
            return 0;
        }
        match self.thinking_budgets.get(&depth) {
            Some(stated) => *stated,
            None => depth.thinking_budget(self.max_output_tokens),
        }
    }

    fn limit_faults(&self) -> Vec<(&'static str, u32, String)> {
        let (context, output) = (self.context_tokens, self.max_output_tokens);
        let mut faults = Vec::new();
        if output == 0 && self.kind == ModelKind::Llm {
            faults.push(("max_output_tokens", output, "must be positive".to_owned()));
        }
        if context == 0 {
            faults.push(("context_tokens", context, "must be positive".to_owned()));
        } else if context < output {
            let rule = format!("must hold the {output} tokens of the longest answer");
            faults.push(("context_tokens", context, rule));
        }
        faults
    }

    /// Everything about the entry that cannot work.
    pub(crate) fn faults(&self) -> Vec<String> {
        let mut faults = Vec::new();
        for (field, value) in [
            ("id", &self.id),
            ("identity", &self.identity),
            ("provider", &self.provider),
            ("wire_id", &self.wire_id),
        ] {
            if let Some(rule) = name_fault(value) {
                faults.push(format!("{field} {rule}"));
            }
        }
        for (field, figure, rule) in self.limit_faults() {
            faults.push(format!("{field} is {figure} and {rule}"));
        }
        for (depth, tokens) in &self.thinking_budgets {
            if *tokens > self.max_output_tokens {
                faults.push(format!(
                    "the thinking budget at {depth:?} is {tokens}, more than the {} tokens that it \
                     can write",
                    self.max_output_tokens
                ));
            }
        }
        faults
    }
}

/// What is wrong with a name that others have to write again.
fn name_fault(name: &str) -> Option<&'static str> {
    if name.trim().is_empty() {
        Some("must not be empty")
    } else if name.trim() != name || name.contains(char::is_control) {
        Some("must have no blank at either end and no control character")
    } else {
        None
    }
}

impl PartialEq for ModelSpec {
    fn eq(&self, other: &Self) -> bool {
        self.id == other.id
    }
}

impl Eq for ModelSpec {}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> ModelSpec {
        ModelSpec::new("m", "p", ModelBound::Concurrency(NonZeroU32::MIN)).unwrap()
    }

    #[test]
    fn a_model_thinks_as_its_entry_says_or_with_the_usual_share() {
        let stated = spec().thinking_budget(Depth::Quick, 300);
        assert_eq!(stated.thinking_tokens(Depth::Quick), 300);
        assert_eq!(stated.thinking_tokens(Depth::Standard), 32_768 / 8);
        assert_eq!(stated.thinking_tokens(Depth::Immediate), 0);
        let none = spec().thinking(Thinking::None);
        assert_eq!(none.thinking_tokens(Depth::UltraThorough), 0);
    }

    #[test]
    fn every_fault_of_an_entry_is_told() {
        let mut broken = spec().identity(" ").thinking_budget(Depth::Quick, 99_999);
        broken.context_tokens = 10;
        broken.provider.clear();
        let faults = broken.faults().join("; ");
        for part in ["identity", "provider", "context_tokens is 10", "Quick"] {
            assert!(faults.contains(part), "{part}: {faults}");
        }
        assert_eq!(broken.faults().len(), 4);
        assert!(spec().faults().is_empty());
    }

    #[test]
    fn equality_is_by_id() {
        assert_eq!(spec(), spec().grade(Grade::Mega));
    }
}
