//! Calling models: what every client answers, and the clients that a job is given.
//!
//! A [`ClientProvider`] makes the clients of one provider. A client speaks the provider's dialect and
//! no more: it answers, or raises what a [`ProviderFailure`] becomes. A job never sees it; what its
//! resources give it is a [`ModelClient`], an [`EmbeddingsModel`] or a [`DecisionModel`], which
//! record, cost, and tell the model's account how it went.

mod call;
mod client;
mod clients;
mod conversation;
mod decision;
mod embeddings;
mod model_client;
mod plain_clients;
mod provider;
mod rate_limit;
mod response;
mod scripted;
mod secret;
mod template;

pub use client::{CallOptions, LlmClient, StreamChunk};
pub use conversation::{Attachment, Conversation, Message, Role};
pub use decision::{DecisionClient, DecisionResponse};
pub use embeddings::{EmbeddingsClient, EmbeddingsPurpose, EmbeddingsResponse};
pub use model_client::ModelClient;
pub use plain_clients::{DecisionModel, EmbeddingsModel};
pub use provider::{ClientProvider, FixedClients};
pub use rate_limit::{RateLimitInfo, RateLimitKind};
pub use response::{LlmResponse, StopReason, Usage};
pub use scripted::{ScriptedCall, ScriptedClient, Step};
pub use secret::{EnvSecrets, FixedSecrets, Secret, SecretStore};
pub use template::ProviderFailure;

pub(crate) use call::Caller;
pub(crate) use clients::Clients;
