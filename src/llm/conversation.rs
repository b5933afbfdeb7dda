//! What is said to a model and what it said.

use std::fmt;
use std::sync::Arc;

use crate::models::InputKind;

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

/// What is sent with a message besides its text.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Attachment {
    /// What it is, as the job has to declare it.
    pub kind: InputKind,
    /// Its media type, such as `image/png`.
    pub media_type: Arc<str>,
    /// The bytes.
    pub data: Arc<[u8]>,
}

impl Attachment {
    /// A picture.
    pub fn image(media_type: impl Into<Arc<str>>, data: impl Into<Arc<[u8]>>) -> Self {
        Self {
            kind: InputKind::Images,
            media_type: media_type.into(),
            data: data.into(),
        }
    }

    /// A document, such as a PDF.
    pub fn document(media_type: impl Into<Arc<str>>, data: impl Into<Arc<[u8]>>) -> Self {
        Self {
            kind: InputKind::Documents,
            media_type: media_type.into(),
            data: data.into(),
        }
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment")
            .field("kind", &self.kind)
            .field("media_type", &self.media_type)
            .field("bytes", &self.data.len())
            .finish()
    }
}

/// One thing said.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Message {
    /// Who.
    pub role: Role,
    /// What.
    pub text: Arc<str>,
    /// What is sent with it.
    pub attachments: Arc<[Attachment]>,
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

    /// Adds what the one who asks says and shows. The job has to declare what it shows
    /// ([`JobRequirements::sends`](crate::JobRequirements::sends)).
    #[must_use]
    pub fn user_with(
        mut self,
        text: impl Into<Arc<str>>,
        attachments: impl IntoIterator<Item = Attachment>,
    ) -> Self {
        self.messages.push(Message {
            role: Role::User,
            text: text.into(),
            attachments: attachments.into_iter().collect(),
        });
        self
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
            attachments: Arc::default(),
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

    /// What is sent besides text.
    pub(crate) fn attachments(&self) -> impl Iterator<Item = &Attachment> {
        self.messages
            .iter()
            .flat_map(|message| message.attachments.iter())
    }

    /// The tokens that all of its text is estimated to be; attachments are not in it.
    #[must_use]
    pub fn estimated_tokens(&self) -> u32 {
        self.messages.iter().fold(0, |sum, message| {
            sum.saturating_add(crate::models::estimate_tokens(&message.text))
        })
    }
}
