//! What is logged of models, and what never is. In a binary of its own: a process has one logger.

use std::error::Error;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nucleo_runtime::events::EventFilter;
use nucleo_runtime::llm::{Conversation, FixedSecrets, Secret};
use nucleo_runtime::models::{
    Catalog, Depth, Grade, ModelBound, ModelSlot, ModelSpec, OutputSize, Prices,
};
use nucleo_runtime::observe::EventLogger;
use nucleo_runtime::testing::{EventRecorder, Fault, FaultyProvider, quiesce};
use nucleo_runtime::{
    Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, Workflow,
};

static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = format!("{} {}", record.level(), record.args());
        LINES.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

fn lines_with(part: &str) -> usize {
    let lines = LINES.lock().unwrap();
    lines.iter().filter(|line| line.contains(part)).count()
}

const SLOT: ModelSlot = ModelSlot::new("answer");
const KEY: &str = "sk-do-not-show-me-8c1f";

struct Ask(Grade);

impl Job for Ask {
    type Output = String;

    fn upstream_retries(&self) -> u32 {
        0
    }

    fn timeout(&self) -> Option<Duration> {
        Some(Duration::from_secs(60))
    }

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none().model(SLOT, self.0, Depth::Immediate, 10, OutputSize::Verdict)
    }

    fn execute(&mut self, resources: &JobResources, _: &JobContext) -> Result<String, JobError> {
        let conversation = Conversation::new().user("hello");
        let model = resources.model(SLOT)?;
        let answer = model.client().stream(&conversation, |_| {})?;
        Ok(format!("{}: {}", model.spec().id, answer.text()))
    }
}

fn spec(id: &str, provider: &str, grade: Grade, price: f64) -> ModelSpec {
    let bound = ModelBound::Concurrency(NonZeroU32::new(10).unwrap());
    ModelSpec::new(id, provider, bound)
        .unwrap()
        .grade(grade)
        .prices(Prices::per_million("USD", price, price).unwrap())
}

/// Everything that an error can be made to show.
fn shown(error: &JobError) -> String {
    let mut shown = format!("{error} {error:?} {} ", error.explain_to_llm());
    shown.push_str(&format!(
        "{:?} {:?}",
        error.human_message(),
        error.upstream_failure()
    ));
    let mut cause = error.source();
    while let Some(next) = cause {
        shown.push_str(&format!("{next} {next:?}"));
        cause = next.source();
    }
    shown
}

// One test: the lines are the process's.
#[test]
fn choices_are_logged_once_and_a_secret_nowhere() {
    log::set_logger(&Recorder).unwrap();
    log::set_max_level(log::LevelFilter::Trace);

    let all = [
        Fault::RateLimit,
        Fault::Overload,
        Fault::ServerError,
        Fault::NoConnection,
        Fault::ContextTooLong,
        Fault::OutOfMoney,
        Fault::Unauthorized,
        Fault::Refusal,
        Fault::Unreadable,
        Fault::DiesMidStream,
    ];
    let careless = FaultyProvider::new("careless", "42")
        .quoting("CARELESS_KEY")
        .fails(all.clone());
    let absent = FaultyProvider::new("absent", "never").quoting("ABSENT_KEY");
    let secrets = FixedSecrets::new([("CARELESS_KEY", KEY)]);
    assert!(!format!("{secrets:?} {:?} {}", Secret::new(KEY), Secret::new(KEY)).contains(KEY));
    let catalog = Catalog::builder()
        .model(spec("pinned", "absent", Grade::Small, 0.1))
        .model(spec("dear", "careless", Grade::Small, 9.0))
        .model(spec("cheap", "careless", Grade::Small, 1.0))
        .pin(Grade::Small, ["pinned"])
        .build()
        .unwrap();
    let builder = JobDispatcher::builder()
        .catalog(catalog)
        .provider(careless.clone())
        .provider(absent)
        .secrets(secrets);
    let mut debugs = format!("{builder:?} {careless:?}");
    let dispatcher = builder.build().unwrap();
    dispatcher.start().unwrap();
    let told = EventRecorder::new();
    let everything = || EventFilter::all();
    let _kept = dispatcher.subscribe(everything(), told.clone()).unwrap();
    let _logged = dispatcher
        .subscribe(everything(), Arc::new(EventLogger::new()))
        .unwrap();

    let workflow = Workflow::new("alice", "asks").unwrap();
    let ask = |grade| dispatcher.submit(&workflow, Ask(grade)).unwrap().get();
    for fault in &all {
        let error = ask(Grade::Small).unwrap_err();
        let text = shown(&error);
        assert!(!text.contains(KEY), "{fault:?}: {text}");
        assert!(text.contains("[secret]"), "{fault:?}: {text}");
    }
    for _ in 0..3 {
        assert_eq!(*ask(Grade::Small).unwrap(), "cheap: 42");
        assert_eq!(*ask(Grade::Mega).unwrap(), "cheap: 42");
    }
    quiesce(&dispatcher);
    debugs.push_str(&format!("{dispatcher:?} {:?}", dispatcher.catalog()));
    for event in told.events() {
        debugs.push_str(&format!("{event:?} {}", event.message()));
    }
    assert!(debugs.contains("[secret]") && !debugs.contains(KEY));
    assert_eq!(lines_with(KEY), 0);
    assert!(lines_with("[secret]") > 0, "the failures were logged");

    assert_eq!(lines_with("the pinned model pinned is passed over"), 1);
    assert_eq!(lines_with("ABSENT_KEY is not set"), 1);
    assert_eq!(lines_with("cheap is taken as the cheapest"), 1);
    assert_eq!(lines_with("put it into `pins.small`"), 1);
    assert_eq!(
        lines_with("grade Mega is asked for and Small is the strongest"),
        1
    );
}
