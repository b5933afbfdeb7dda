//! A job's own value with its types erased, as its thread drives it.

use std::any::Any;
use std::sync::Arc;

use crate::error::JobError;
use crate::job::core::Outcome;
use crate::job::{Job, JobContext, JobRequirements, JobResources};

use super::orchestrator::{Doer, OrchestratorContext};

/// What an attempt calls. Everything behind it is a user's code; the caller contains it.
pub(super) trait Body: Send {
    /// Whether it may need anything. Of what may not, no code of a user's is asked.
    fn may_hold(&self) -> bool {
        true
    }

    fn requirements(&self) -> JobRequirements;

    fn pre_execute(
        &mut self,
        resources: &JobResources,
        context: &JobContext,
    ) -> Result<(), JobError>;

    fn execute(&mut self, resources: &JobResources, context: &OrchestratorContext) -> Outcome;

    fn output_text(&self, output: &Arc<dyn Any + Send + Sync>) -> Option<String>;

    fn post_execute(&mut self, outcome: &Outcome, context: &JobContext);
}

pub(super) struct LeafBody<J>(pub(super) J);

impl<J: Job> Body for LeafBody<J> {
    fn requirements(&self) -> JobRequirements {
        self.0.requirements()
    }

    fn pre_execute(
        &mut self,
        resources: &JobResources,
        context: &JobContext,
    ) -> Result<(), JobError> {
        self.0.pre_execute(resources, context)
    }

    fn execute(&mut self, resources: &JobResources, context: &OrchestratorContext) -> Outcome {
        // Only the plain context reaches a leaf: it has no way to submit.
        let output = self.0.execute(resources, context.job())?;
        Ok(Arc::new(output))
    }

    fn output_text(&self, output: &Arc<dyn Any + Send + Sync>) -> Option<String> {
        self.0.output_text(output.downcast_ref()?)
    }

    fn post_execute(&mut self, outcome: &Outcome, context: &JobContext) {
        self.0.post_execute(typed(outcome), context);
    }
}

pub(super) struct OrchestratorBody<D>(pub(super) D);

impl<D: Doer> Body for OrchestratorBody<D> {
    fn may_hold(&self) -> bool {
        false
    }

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
    }

    fn pre_execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }

    fn execute(&mut self, _: &JobResources, context: &OrchestratorContext) -> Outcome {
        Ok(Arc::new(self.0.execute(context)?))
    }

    fn output_text(&self, output: &Arc<dyn Any + Send + Sync>) -> Option<String> {
        self.0.output_text(output.downcast_ref()?)
    }

    fn post_execute(&mut self, outcome: &Outcome, context: &JobContext) {
        self.0.post_execute(typed(outcome), context);
    }
}

/// The outcome in the job's own type.
fn typed<T: 'static>(outcome: &Outcome) -> Result<&T, &JobError> {
    match outcome {
        Ok(value) => match value.downcast_ref::<T>() {
            Some(value) => Ok(value),
            // The value was made of this very type a moment ago.
            None => unreachable!("a job's output has the job's output type"),
        },
        Err(error) => Err(error),
    }
}
