//! What a guard costs: the same call, bare and with one, two and three guards, one after the other.

use std::sync::Arc;
use std::time::{Duration, Instant};

use nucleo_runtime::guard::{Guards, JobInput, PayloadSizeCap};
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobResources, Workflow, guard::PiiDetection,
};

const CALLS: usize = 2_000;

struct Call(Guards);

impl Job for Call {
    type Output = String;

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::new("a short question".to_owned()))
    }

    fn guards(&self) -> Guards {
        self.0.clone()
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<String, JobError> {
        Ok("a short answer".to_owned())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dispatcher = JobDispatcher::builder().build()?;
    dispatcher.start()?;
    let workflow = Workflow::new("alice", "cost")?;
    let one = Guards::none().input(PayloadSizeCap::new(100));
    let two = one.clone().output(PayloadSizeCap::new(100));
    let three = two.clone().output(PiiDetection);
    let sets = [Guards::none(), one, two, three];
    for (guards, set) in sets.iter().enumerate() {
        let mut took = Vec::new();
        for _ in 0..CALLS {
            let began = Instant::now();
            dispatcher.submit(&workflow, Call(set.clone()))?.get()?;
            took.push(began.elapsed());
        }
        took.sort();
        // The median: whatever else the machine does shows in the mean.
        println!("{guards} guards: {:?} a call", took[took.len() / 2]);
    }
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}
