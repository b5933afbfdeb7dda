//! What the log holds of events. The logger of the test binary writes down what the filter of the
//! calling thread lets through: `env_logger`'s own, as `RUST_LOG` sets it.

use std::cell::RefCell;
use std::sync::{Arc, Once};

use log::Level;

use super::EventLogger;
use crate::error::{JobError, ResultExt};
use crate::events::{
    AppEvent, Event, EventFilter, LimiterChange, MessageBus, Observer, Severity, sample,
};
use crate::job::JobSnapshot;

thread_local! {
    static FILTER: RefCell<Option<env_logger::Logger>> = const { RefCell::new(None) };
    static LINES: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

#[derive(Debug, PartialEq)]
struct Line {
    level: Level,
    target: String,
    text: String,
    ids: Vec<(String, String)>,
}

struct ByThread;

impl log::Log for ByThread {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        FILTER.with_borrow(|filter| {
            filter
                .as_ref()
                .is_some_and(|filter| log::Log::enabled(filter, metadata))
        })
    }

    fn log(&self, record: &log::Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        struct Ids(Vec<(String, String)>);
        impl<'kvs> log::kv::VisitSource<'kvs> for Ids {
            fn visit_pair(
                &mut self,
                key: log::kv::Key<'kvs>,
                value: log::kv::Value<'kvs>,
            ) -> Result<(), log::kv::Error> {
                self.0.push((key.to_string(), value.to_string()));
                Ok(())
            }
        }
        let mut ids = Ids(Vec::new());
        record.key_values().visit(&mut ids).unwrap();
        LINES.with_borrow_mut(|lines| {
            lines.push(Line {
                level: record.level(),
                target: record.target().to_owned(),
                text: record.args().to_string(),
                ids: ids.0,
            });
        });
    }

    fn flush(&self) {}
}

/// The lines that `events` leave under this `RUST_LOG`.
fn logged<'a>(rust_log: &str, events: impl IntoIterator<Item = &'a Event>) -> Vec<Line> {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        log::set_logger(&ByThread).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    let filter = env_logger::Builder::new().parse_filters(rust_log).build();
    FILTER.set(Some(filter));
    let logger = EventLogger::new();
    for event in events {
        if logger.accepts(event) {
            logger.observe(&Arc::new(event.clone()));
        }
    }
    FILTER.set(None);
    LINES.take()
}

fn job() -> JobSnapshot {
    sample::sample_snapshot("shop::tools::Lookup", "analyze-document-abc123")
}

#[derive(Debug)]
struct Payment;

impl AppEvent for Payment {
    fn name(&self) -> &str {
        "payment"
    }
}

// case OBS-01
#[test]
fn each_event_goes_to_its_jobs_type_and_its_kind_at_a_fixed_level() {
    let job = job();
    let notify = |severity| Event::from(sample::notification(&job, severity));
    let stream = sample::content(&job, "once upon a time", false);
    let table: Vec<(Event, Option<(&str, Level)>)> = vec![
        (sample::failed(&job, None), Some(("failure", Level::Warn))),
        (
            sample::timed_out(&job, None),
            Some(("failure", Level::Warn)),
        ),
        (
            sample::dependency_failure(&job, None),
            Some(("failure", Level::Warn)),
        ),
        (sample::scheduled(&job), Some(("lifecycle", Level::Info))),
        (sample::started(&job, 1), Some(("lifecycle", Level::Info))),
        (
            sample::completed(&job, None),
            Some(("lifecycle", Level::Info)),
        ),
        (
            sample::cancelled(&job, false),
            Some(("lifecycle", Level::Info)),
        ),
        (sample::idle(&job), Some(("lifecycle", Level::Info))),
        (
            sample::transient(&job).into(),
            Some(("retry", Level::Debug)),
        ),
        (
            sample::truncation(&job).into(),
            Some(("retry", Level::Debug)),
        ),
        (
            sample::progress(&job, Some("indexing"), Some(40)),
            Some(("progress", Level::Debug)),
        ),
        (stream, Some(("stream", Level::Debug))),
        (notify(Severity::Info), Some(("notification", Level::Debug))),
        (
            notify(Severity::Success),
            Some(("notification", Level::Debug)),
        ),
        (
            notify(Severity::Warning),
            Some(("notification", Level::Warn)),
        ),
        (
            notify(Severity::Error),
            Some(("notification", Level::Error)),
        ),
        (
            sample::app(Payment, Some(job.clone())),
            Some(("event", Level::Info)),
        ),
        (
            sample::limiter(LimiterChange::Held, Some(job.clone())).into(),
            None,
        ),
        (sample::limiter(LimiterChange::Held, None).into(), None),
    ];
    for (event, expected) in table {
        let lines = logged("trace", [&event]);
        let told: Vec<_> = lines
            .iter()
            .map(|line| (line.target.as_str(), line.level))
            .collect();
        let expected =
            expected.map(|(kind, level)| (format!("shop::tools::Lookup::{kind}"), level));
        let expected: Vec<_> = expected
            .iter()
            .map(|(target, level)| (target.as_str(), *level))
            .collect();
        assert_eq!(told, expected, "{event:?}");
    }
}

// case OBS-01
#[test]
fn an_event_about_no_job_goes_to_its_own_type() {
    let error = Event::scheduler_error("the disk is full", sample::at());
    let told = logged("trace", [&error, &sample::app(Payment, None)]);
    let told: Vec<_> = told
        .iter()
        .map(|line| (line.target.as_str(), line.level, line.ids.len()))
        .collect();
    assert_eq!(
        told,
        [
            (
                "nucleo_runtime::events::SchedulerError::system",
                Level::Info,
                0
            ),
            (concat!(module_path!(), "::Payment::event"), Level::Info, 0),
        ]
    );
}

#[test]
fn the_type_of_a_generic_job_stands_without_its_parameters() {
    let job = sample::sample_snapshot("shop::Batch<alloc::string::String>", "w");
    let lines = logged("info", [&sample::started(&job, 1)]);
    assert_eq!(lines[0].target, "shop::Batch::lifecycle");
}

// case OBS-02
#[test]
fn rust_log_chooses_by_program_by_job_type_and_by_kind() {
    let job = job();
    let events = [
        sample::started(&job, 1),
        sample::progress(&job, Some("indexing"), Some(40)),
        sample::content(&job, "once", false),
    ];
    let kinds = |rust_log: &str| -> Vec<String> {
        logged(rust_log, &events)
            .iter()
            .map(|line| line.target.rsplit("::").next().unwrap().to_owned())
            .collect()
    };
    assert_eq!(kinds("shop=info"), ["lifecycle"]);
    assert_eq!(
        kinds("shop::tools::Lookup=debug"),
        ["lifecycle", "progress", "stream"]
    );
    assert_eq!(kinds("shop::tools::Lookup::progress=debug"), ["progress"]);
    assert_eq!(kinds("elsewhere=trace"), [""; 0]);
}

// case OBS-04
#[test]
fn a_line_tells_the_workflow_the_job_its_state_and_the_message() {
    let job = job();
    let system = Event::scheduler_error("the disk is full", sample::at());
    let whole = sample::sample_snapshot("Lookup", "orders-1");
    let lines = logged(
        "trace",
        [
            &sample::started(&job, 1),
            &sample::started(&whole, 2),
            &system,
        ],
    );
    let texts: Vec<_> = lines.iter().map(|line| line.text.as_str()).collect();
    assert_eq!(
        texts,
        [
            "analyze-do...c123 [shop::tools::Lookup/QUEUED] Job started (attempt 1)",
            "orders-1 [Lookup/QUEUED] Job started (attempt 2)",
            "[SYSTEM] Scheduler error: the disk is full",
        ]
    );
    let id = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    assert_eq!(
        lines[0].ids,
        [
            id("workflow_id", "analyze-document-abc123"),
            id("job_id", job.job_id()),
        ]
    );
}

#[test]
fn what_a_job_says_cannot_forge_a_line() {
    let said = "done\n2026-01-01 ERROR all is lost\u{1b}[2J";
    let lines = logged("trace", [&sample::progress(&job(), Some(said), None)]);
    assert_eq!(lines.len(), 1);
    assert!(
        lines[0]
            .text
            .ends_with("done\\n2026-01-01 ERROR all is lost\\u{1b}[2J"),
        "{}",
        lines[0].text
    );
}

// case OBS-05
#[test]
fn only_a_defect_adds_its_causes_and_only_where_it_first_occurs() {
    let job = job();
    let broken = std::io::Error::other("the plug is out");
    let defect = Err::<(), _>(broken).system("pump").unwrap_err();
    let lines = logged("info", [&sample::failed(&job, Some(defect.clone()))]);
    let told: Vec<_> = lines.iter().map(|line| line.level).collect();
    assert_eq!(told, [Level::Warn, Level::Error]);
    assert!(
        lines[1].text.contains("caused by: the plug is out"),
        "{}",
        lines[1].text
    );
    assert_eq!(lines[1].target, "shop::tools::Lookup::failure");

    // Addressed to a model.
    let readable = JobError::invalid_input("page", 7, "from 1 to 5");
    assert_eq!(
        logged("info", [&sample::failed(&job, Some(readable))]).len(),
        1
    );
    // A child's, in the failure of the job that depended on it.
    let wrapped = JobError::dependency_failed("Lookup-1", defect.clone());
    assert_eq!(
        logged("info", [&sample::dependency_failure(&job, Some(wrapped))]).len(),
        1
    );
    // A child's, passed on as it is by the orchestrator that asked for it.
    let parent = sample::sample_snapshot("shop::Report", "w-1");
    let lines = logged(
        "info",
        [
            &sample::failed(&job, Some(defect.clone())),
            &sample::failed(&parent, Some(defect)),
        ],
    );
    let told: Vec<_> = lines.iter().map(|line| line.level).collect();
    assert_eq!(told, [Level::Warn, Level::Error, Level::Warn]);
}

// case OBS-06
#[test]
fn a_bus_holds_one_of_them() {
    let bus = MessageBus::standalone(Arc::new(crate::ManualClock::new()));
    bus.start();
    let first = bus.subscribe(EventFilter::all(), Arc::new(EventLogger::new()));
    let second = bus.subscribe(EventFilter::all(), Arc::new(EventLogger::new()));
    assert!(!first.unwrap().is_noop());
    assert!(second.unwrap().is_noop());
}
