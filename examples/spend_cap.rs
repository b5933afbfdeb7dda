//! A workflow that may spend one cent. What a job could cost at most is reserved before it is
//! admitted, so the one that could pass the cap is refused before it sends anything.

use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::llm::{Conversation, ScriptedClient};
use nucleo_runtime::models::{Catalog, Depth, Grade, ModelSlot, OutputSize};
use nucleo_runtime::observe::CostLedger;
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, Workflow,
};

const ANSWER: ModelSlot = ModelSlot::new("answer");

/// Has a model write as much as the size says.
struct Write {
    grade: Grade,
    size: OutputSize,
}

impl Job for Write {
    type Output = String;

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().model(ANSWER, self.grade, Depth::Immediate, 50, self.size)
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<String, JobError> {
        let question = Conversation::new().user("Write about the tide.");
        let answer = resources.model(ANSWER)?.client().respond(&question)?;
        Ok(answer.text().to_owned())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let ledger = CostLedger::new();
    let client = ScriptedClient::from_fn(|_| "The tide comes in, and the tide goes out.");
    let dispatcher = JobDispatcher::builder()
        .catalog(Catalog::starter())
        .client("scripted", Arc::new(client))
        .spend_gate(ledger.clone())
        .build()?;
    dispatcher.start()?;

    let workflow = Workflow::new("alice", "essays")?;
    ledger.cap(workflow.id(), "0.01 USD".parse()?);
    let attempts = [
        (
            "a small model, a paragraph",
            Grade::Small,
            OutputSize::Compact,
        ),
        (
            "a large model, some pages",
            Grade::Large,
            OutputSize::Standard,
        ),
        (
            "a small model, a verdict",
            Grade::Small,
            OutputSize::Verdict,
        ),
    ];
    for (what, grade, size) in attempts {
        match dispatcher.submit(&workflow, Write { grade, size })?.get() {
            Ok(text) => println!("{what}: {text}"),
            Err(error) => println!("{what}: refused\n  {error}"),
        }
    }

    let report = ledger.report(workflow.id()).unwrap_or_default();
    for call in &report.calls {
        if let (Some(usage), Some(cost)) = (call.usage, call.cost) {
            println!(
                "{} called {}: {} tokens in, {} out, {cost}",
                call.name, call.model, usage.input_tokens, usage.output_tokens
            );
        }
    }
    for spent in &report.spent {
        println!("spent {spent} in all (each amount is rounded by itself)");
    }
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}
