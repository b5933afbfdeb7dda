use nucleo_runtime::{Doer, JobError, JobRequirements, JobResources, OrchestratorContext};

struct Declares;

impl Doer for Declares {
    type Output = ();

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().http_connection()
    }

    fn execute(&mut self, _: &OrchestratorContext) -> Result<(), JobError> {
        Ok(())
    }
}

struct IsGiven;

impl Doer for IsGiven {
    type Output = ();

    fn execute(&mut self, _: &JobResources, _: &OrchestratorContext) -> Result<(), JobError> {
        Ok(())
    }
}

fn main() {}
