//! One job, from its declaration to its result.

use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, Workflow,
};

/// Greets somebody, while it holds a permit of the one door.
struct Greet {
    door: Arc<CountingGate>,
    name: String,
}

impl Job for Greet {
    type Output = String;

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().permit(&self.door)
    }

    fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<String, JobError> {
        Ok(format!("hello {}, from {}", self.name, context.job_id()))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dispatcher = JobDispatcher::builder().build()?;
    dispatcher.start()?;
    let door = Arc::new(CountingGate::new("door", 1)?);
    let name = "world".to_owned();
    let handle = dispatcher.submit(&Workflow::new("alice", "greetings")?, Greet { door, name })?;
    println!("{}", handle.get()?);
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}
