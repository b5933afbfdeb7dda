//! A dispatcher with models, on a clock that the test owns.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use nucleo_runtime::events::{Event, EventFilter, RetryEvent, Subscription};
use nucleo_runtime::llm::Conversation;
use nucleo_runtime::models::{
    Catalog, Depth, Grade, ModelBound, ModelSlot, ModelSpec, OutputSize, Prices,
};
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    Job, JobDispatcher, JobDispatcherBuilder, JobError, JobHandle, JobRequirements, ManualClock,
    Workflow, job_fn,
};

pub(crate) const ANSWER: ModelSlot = ModelSlot::new("answer");

pub(crate) struct Run {
    pub(crate) clock: ManualClock,
    pub(crate) dispatcher: JobDispatcher,
    pub(crate) workflow: Workflow,
    pub(crate) told: Arc<EventRecorder>,
    _subscription: Subscription,
}

impl Run {
    /// Starts a dispatcher that `configure` completes.
    pub(crate) fn new(
        configure: impl FnOnce(JobDispatcherBuilder) -> JobDispatcherBuilder,
    ) -> Self {
        let clock = ManualClock::new();
        let builder = JobDispatcher::builder()
            .clock(Arc::new(clock.clone()))
            .without_memory_gate();
        let dispatcher = configure(builder).build().unwrap();
        dispatcher.start().unwrap();
        let told = EventRecorder::new();
        let subscription = dispatcher
            .subscribe(EventFilter::all(), told.clone())
            .unwrap();
        Self {
            clock,
            dispatcher,
            workflow: Workflow::new("alice", "asks").unwrap(),
            told,
            _subscription: subscription,
        }
    }

    pub(crate) fn submit<J: Job>(&self, job: J) -> JobHandle<J::Output> {
        self.dispatcher.submit(&self.workflow, job).unwrap()
    }

    /// Submits a job that asks a model of this grade once.
    pub(crate) fn ask(&self, grade: Grade) -> JobHandle<String> {
        self.submit(asks(grade))
    }

    /// Lets the next wait between two attempts pass, and answers how long it was.
    pub(crate) fn pass_retry(&self, seen: &mut usize) -> Duration {
        let nth = *seen;
        *seen += 1;
        let mut found = 0;
        let event = self.told.wait_until(|event| {
            let retries = matches!(event, Event::Retry(_));
            found += usize::from(retries);
            retries && found > nth
        });
        let Event::Retry(retry) = &*event else {
            unreachable!()
        };
        let delay = retry.delay().unwrap_or_default();
        self.clock.advance(delay);
        delay
    }

    /// What was told of attempts that run again.
    pub(crate) fn retries(&self) -> Vec<RetryEvent> {
        quiesce(&self.dispatcher);
        let events = self.told.events();
        events
            .iter()
            .filter_map(|event| match &**event {
                Event::Retry(retry) => Some(retry.clone()),
                _ => None,
            })
            .collect()
    }
}

/// A job that asks a model of this grade once, and answers which model it was and what it said.
pub(crate) fn asks(grade: Grade) -> impl Job<Output = String> {
    job_fn(
        move || {
            JobRequirements::none().model(ANSWER, grade, Depth::Immediate, 10, OutputSize::Verdict)
        },
        |resources, _| {
            let model = resources.model(ANSWER)?;
            let answer = model.client().respond(&question())?;
            Ok::<_, JobError>(format!("{}: {}", model.spec().id, answer.text()))
        },
    )
}

pub(crate) fn question() -> Conversation {
    Conversation::new().user("what is six times seven?")
}

pub(crate) fn quota(tpm: u32, rpm: u32) -> ModelBound {
    ModelBound::Quota {
        tokens_per_minute: NonZeroU32::new(tpm).unwrap(),
        requests_per_minute: NonZeroU32::new(rpm),
    }
}

/// A model of one dollar a million tokens read and ten a million written.
pub(crate) fn priced(id: &str, provider: &str, grade: Grade) -> ModelSpec {
    ModelSpec::new(id, provider, quota(100_000_000, 100_000))
        .unwrap()
        .grade(grade)
        .prices(Prices::per_million("USD", 1.0, 10.0).unwrap())
}

pub(crate) fn catalog(models: impl IntoIterator<Item = ModelSpec>) -> Catalog {
    let mut builder = Catalog::builder();
    for model in models {
        let (grade, id) = (model.grade, model.id.clone());
        let llm = model.kind == nucleo_runtime::models::ModelKind::Llm;
        builder = builder.model(model);
        if llm {
            builder = builder.pin(grade, [id]);
        }
    }
    builder.build().unwrap()
}
