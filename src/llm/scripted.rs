//! x
use super::{CallOptions, Conversation, LlmClient, LlmResponse};
use crate::{JobError, models::ModelSpec};
/// x
#[derive(Debug)]
pub struct ScriptedClient;
/// x
#[derive(Debug)]
pub struct Script;
impl LlmClient for ScriptedClient {
    fn respond(
        &self,
        _: &ModelSpec,
        c: &Conversation,
        _: &CallOptions,
    ) -> Result<LlmResponse, JobError> {
        Ok(LlmResponse::new(
            format!("{}", c.messages().len()),
            Default::default(),
        ))
    }
}
