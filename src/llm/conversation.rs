//! What is said to a model and what it said.

use std::sync::Arc;

/// Who says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Role {
    /// Standing instructions.
    System,
    /// The one who asks.
    User,
    /// The model.
    Assistant,
}

/// One thing said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What.
    pub text: Arc<str>,
}

/// What is said to a model, in order. Grows by value: each method answers the longer one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conversation {
    messages: Vec<Message>,
}

impl Conversation {
    /// Nothing said yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds standing instructions.
    #[must_use]
    pub fn system(self, text: impl Into<Arc<str>>) -> Self {
        self.say(Role::System, text)
    }

    /// Adds what the one who asks says.
    #[must_use]
    pub fn user(self, text: impl Into<Arc<str>>) -> Self {
        self.say(Role::User, text)
    }

    /// Adds what the model said.
    #[must_use]
    pub fn assistant(self, text: impl Into<Arc<str>>) -> Self {
        self.say(Role::Assistant, text)
    }

    fn say(mut self, role: Role, text: impl Into<Arc<str>>) -> Self {
        self.messages.push(Message {
            role,
            text: text.into(),
        });
        self
    }

    /// Everything said, in order.
    #[must_use]
    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// What was said last, if anything was.
    #[must_use]
    pub fn last(&self) -> Option<&Message> {
        self.messages.last()
    }

    /// The tokens that all of it is estimated to be.
    #[must_use]
    pub fn estimated_tokens(&self) -> u32 {
        self.messages.iter().fold(0, |sum, message| {
            sum.saturating_add(crate::models::estimate_tokens(&message.text))
        })
    }
}
