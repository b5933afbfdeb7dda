//! Calling models: what every client answers, and the client that a job is given.

mod client;
mod conversation;
mod model_client;
mod rate_limit;
mod response;
mod scripted;
mod template;

pub use client::{CallOptions, LlmClient, StreamChunk};
pub use conversation::{Conversation, Message, Role};
pub use model_client::ModelClient;
pub use rate_limit::{RateLimitInfo, RateLimitKind};
pub use response::{LlmResponse, StopReason, Usage};
pub use scripted::{ScriptedCall, ScriptedClient, Step};
