//! An orchestrator that fans out, and jobs that run after others: dependencies, steps and their
//! ordinals.

use std::time::Duration;

use nucleo_runtime::{
    Doer, Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, JobSnapshot,
    Metadata, MetadataValue, OrchestratorContext, Workflow, job_fn,
};

/// Counts the words of one line.
struct CountWords {
    line: &'static str,
}

impl Job for CountWords {
    type Output = usize;

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<usize, JobError> {
        Ok(self.line.split_whitespace().count())
    }
}

/// Adds up what the jobs found that it was submitted after.
struct AddUp;

impl Job for AddUp {
    type Output = usize;

    fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<usize, JobError> {
        let counts = context.dependency_results();
        Ok(counts
            .iter()
            .filter_map(|(_, count)| count.downcast_ref::<usize>())
            .sum())
    }
}

struct CountPoem {
    lines: &'static [&'static str],
}

impl Doer for CountPoem {
    type Output = Vec<JobSnapshot>;

    fn execute(&mut self, context: &OrchestratorContext) -> Result<Self::Output, JobError> {
        // Step 1: every line at once, all under one ordinal.
        context.next_step();
        let counts = self
            .lines
            .iter()
            .map(|line| context.submit_in_current_step(CountWords { line }))
            .collect::<Result<Vec<_>, _>>()?;

        // Step 2: runs by itself once the last line is counted. Nobody waits for it here.
        context.next_step();
        let sum = counts
            .iter()
            .fold(context.submit_with(AddUp), |sum, count| sum.after(count))
            .in_current_step()
            .submit()?;

        // Step 3: after the sum, with a fact of its own.
        context.next_step();
        let report = job_fn(JobRequirements::none, |_, context| {
            let words = context.single_dependency_result::<usize>()?;
            Ok(format!("{words} words"))
        });
        let report = context
            .submit_with(report.named("Report"))
            .after(&sum)
            .metadata("why", "to show how it is done")
            .in_current_step()
            .submit()?;
        println!("{}", report.get()?);

        let counted = counts.iter().map(|count| count.snapshot());
        Ok(counted.chain([sum.snapshot(), report.snapshot()]).collect())
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dispatcher = JobDispatcher::builder().build()?;
    dispatcher.start()?;
    let lines = &[
        "The job that waits holds nothing",
        "and what it asks for comes at once",
        "or not at all",
    ];
    let workflow = Workflow::new("alice", "poems")?;
    let handle = dispatcher.submit(&workflow, CountPoem { lines })?;
    for child in handle.get()?.iter() {
        let step = child.metadata().get(Metadata::ITERATION);
        println!(
            "step {}  {:<10}  {}",
            step.and_then(MetadataValue::as_integer).unwrap_or_default(),
            child.display_name(),
            child.state(),
        );
    }
    dispatcher.shutdown(Duration::from_secs(5))?;
    Ok(())
}
