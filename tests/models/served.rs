//! What an answer says served it reaches job and record without the provider's secrets (`LLM-7`).

use std::sync::Arc;

use nucleo_runtime::llm::{
    CallOptions, ClientProvider, Conversation, FixedSecrets, LlmClient, LlmResponse, SecretStore,
    Usage,
};
use nucleo_runtime::models::{Catalog, Depth, Grade, ModelSlot, ModelSpec, OutputSize};
use nucleo_runtime::{JobDispatcher, JobError, JobRequirements, Workflow, job_fn};

const SLOT: ModelSlot = ModelSlot::new("answer");
const KEY: &str = "sk-live-0123456789abcdef";

/// Answers in the name of a model that it calls by its key.
#[derive(Debug)]
struct Talkative;

impl LlmClient for Talkative {
    fn respond(
        &self,
        _: &ModelSpec,
        _: &Conversation,
        _: &CallOptions,
    ) -> Result<LlmResponse, JobError> {
        Ok(LlmResponse::new("42", Usage::new(1, 1)).served_by(format!("gpt of {KEY}")))
    }
}

impl ClientProvider for Talkative {
    fn key(&self) -> &str {
        "talkative"
    }

    fn llm(&self, secrets: &dyn SecretStore) -> Result<Arc<dyn LlmClient>, JobError> {
        assert!(secrets.secret("KEY").is_some());
        Ok(Arc::new(Talkative))
    }
}

#[test]
fn a_job_is_told_who_served_it_without_the_key() {
    let spec = ModelSpec::new("m", "talkative", crate::support::quota(60_000, 60))
        .unwrap()
        .grade(Grade::Small);
    let dispatcher = JobDispatcher::builder()
        .catalog(Catalog::builder().model(spec).build().unwrap())
        .provider(Talkative)
        .secrets(FixedSecrets::new([("KEY", KEY)]))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let needs = || {
        JobRequirements::none().model(
            SLOT,
            Grade::Small,
            Depth::Immediate,
            10,
            OutputSize::Verdict,
        )
    };
    let job = job_fn(needs, |resources, _| {
        let model = resources.model(SLOT)?;
        model.client().respond(&Conversation::new().user("who?"))
    });
    let workflow = Workflow::new("alice", "served").unwrap();
    let answer = dispatcher.submit(&workflow, job).unwrap().get().unwrap();
    assert_eq!(answer.served.as_deref(), Some("gpt of [secret]"));
    assert!(!format!("{answer:?}").contains(KEY));
}
