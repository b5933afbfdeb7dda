//! One call of a model: the job says how much model it needs, the catalog says which that is.
//!
//! The model is a scripted one, so there is no network and nothing to pay.

use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::llm::{Conversation, ScriptedClient};
use nucleo_runtime::models::{Catalog, Depth, Grade, ModelSlot, OutputSize};
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, Workflow,
};

const ANSWER: ModelSlot = ModelSlot::new("answer");

/// Asks a model a question.
struct Ask {
    question: String,
}

impl Job for Ask {
    type Output = String;

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().model_for_prompt(
            ANSWER,
            Grade::Small,
            Depth::Quick,
            &self.question,
            OutputSize::Verdict,
        )
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<String, JobError> {
        let model = resources.model(ANSWER)?;
        let question = Conversation::new().user(self.question.as_str());
        let answer = model.client().respond(&question)?;
        Ok(format!("{} says: {}", model.spec().id, answer.text()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dispatcher = JobDispatcher::builder()
        .catalog(Catalog::starter())
        .client("scripted", Arc::new(ScriptedClient::from_fn(|_| "42")))
        .build()?;
    dispatcher.start()?;
    let question = "What is six times seven?".to_owned();
    let workflow = Workflow::new("alice", "questions")?;
    let handle = dispatcher.submit(&workflow, Ask { question })?;
    println!("{}", handle.get()?);
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}
