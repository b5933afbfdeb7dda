use nucleo_runtime::{Job, JobContext, JobError, JobRequirements, JobResources, job_fn};

struct Leaf;

impl Job for Leaf {
    type Output = ();

    fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<(), JobError> {
        context.submit(job_fn(JobRequirements::none, |_, _| Ok(())))?;
        Ok(())
    }
}

fn main() {}
