//! What stands on the console, and what ends an observer of one workflow.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{StreamingLogObserver, WorkflowObserver};
use crate::clock::{Clock, ManualClock};
use crate::events::{Event, MessageBus, Observer, sample};
use crate::job::JobSnapshot;

/// An output that the test can read.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Paper {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

const FLOW: &str = "w-1";

fn job(type_name: &'static str) -> JobSnapshot {
    sample::sample_snapshot(type_name, FLOW)
}

fn hear(observer: &impl Observer, events: impl IntoIterator<Item = Event>) {
    for event in events {
        if observer.accepts(&event) {
            observer.observe(&Arc::new(event));
        }
    }
}

/// What stands on the console after these events.
fn written(
    choose: impl FnOnce(StreamingLogObserver<Paper>) -> StreamingLogObserver<Paper>,
    events: impl IntoIterator<Item = Event>,
) -> String {
    let paper = Paper::default();
    let observer = choose(StreamingLogObserver::new(FLOW, paper.clone()));
    hear(&observer, events);
    paper.text()
}

// case OBS-19
#[test]
fn pieces_stand_in_one_line_and_the_last_one_ends_it() {
    let job = job("Write");
    let text = written(
        |observer| observer.progress(false),
        [
            sample::content(&job, "Once ", false),
            sample::content(&job, "upon a ", false),
            sample::content(&job, "time.", true),
        ],
    );
    assert_eq!(text, "Once upon a time.\nSTREAMING COMPLETE\n");
}

// case OBS-19
#[test]
fn reasoning_and_tools_stand_out() {
    let job = job("Think");
    let text = written(
        |observer| observer,
        [
            sample::content(&job, "well", false),
            sample::content(&job, "[REASONING] it\nrains", false),
            sample::content(&job, "[TOOLS TO EXECUTE] Look", false),
            sample::content(&job, "[TOOL COMPLETED] Look\n", false),
        ],
    );
    let expected = "\
well
\u{2554}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2557}
\u{2551} [REASONING] it \u{2551}
\u{2551} rains          \u{2551}
\u{255a}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{2550}\u{255d}
\u{250c}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2510}
\u{2502} [TOOLS TO EXECUTE] Look \u{2502}
\u{2514}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2500}\u{2518}
\u{2713} [TOOL COMPLETED] Look
";
    assert_eq!(text, expected);
}

// case OBS-19
#[test]
fn progress_is_a_line_with_its_percentage_and_its_text() {
    let job = job("Index");
    let text = written(
        |observer| observer,
        [
            sample::progress(&job, Some("indexing"), Some(40)),
            sample::progress(&job, Some("still indexing"), None),
            sample::progress(&job, None, Some(60)),
            sample::progress(&job, None, None),
        ],
    );
    assert_eq!(
        text,
        "Progress: 40% - indexing\nProgress: still indexing\nProgress: 60%\n"
    );
}

// case OBS-19
#[test]
fn a_piece_is_not_said_again_as_progress() {
    let job = job("Write");
    let text = written(
        |observer| observer.content(false),
        [
            sample::content(&job, "Once ", false),
            sample::content(&job, "upon a time.", true),
        ],
    );
    assert_eq!(text, "Progress: 100%\n");
}

// case OBS-19
#[test]
fn each_flag_silences_its_kind() {
    let job = job("Write");
    let events = || {
        [
            sample::progress(&job, Some("writing"), Some(1)),
            sample::content(&job, "Once", false),
        ]
    };
    assert_eq!(
        written(|observer| observer, events()),
        "Progress: 1% - writing\nOnce"
    );
    assert_eq!(
        written(|observer| observer.progress(false), events()),
        "Once"
    );
    assert_eq!(
        written(|observer| observer.content(false), events()),
        "Progress: 1% - writing\n"
    );
    assert_eq!(
        written(|observer| observer.content(false).progress(false), events()),
        ""
    );
}

#[test]
fn another_jobs_stream_begins_a_line_with_its_name() {
    let (first, second) = (job("First"), job("Second"));
    let text = written(
        |observer| observer,
        [
            sample::content(&first, "a", false),
            sample::content(&second, "b", false),
            sample::content(&second, "c", false),
            sample::content(&first, "d", false),
            sample::progress(&first, Some("half"), Some(50)),
            sample::content(&first, "e", false),
        ],
    );
    assert_eq!(text, "a\n[Second] bc\n[First] d\nProgress: 50% - half\ne");
}

#[test]
fn what_a_model_says_cannot_control_the_terminal() {
    let text = written(
        |observer| observer,
        [sample::content(
            &job("Write"),
            "a\u{1b}]0;owned\u{7}b\n",
            false,
        )],
    );
    assert_eq!(text, "a\\u{1b}]0;owned\\u{7}b\n");
}

// case OBS-19
#[test]
fn events_about_no_job_or_another_workflow_are_not_for_it() {
    let observer = StreamingLogObserver::new(FLOW, Paper::default());
    let elsewhere = sample::sample_snapshot("Write", "w-2");
    assert!(!observer.accepts(&Event::scheduler_error("x", sample::at())));
    assert!(!observer.accepts(&sample::content(&elsewhere, "x", false)));
    assert!(observer.accepts(&sample::content(&job("Write"), "x", false)));
}

// case OBS-19
#[test]
fn two_are_equal_by_workflow_flags_and_whether_there_is_a_timeout() {
    let make = || StreamingLogObserver::new(FLOW, Paper::default());
    let seconds = Duration::from_secs;
    assert_eq!(make().key(), make().key());
    assert_eq!(
        make().stale_after(seconds(1)).key(),
        make().stale_after(seconds(2)).key()
    );
    assert_ne!(make().stale_after(seconds(1)).key(), make().key());
    assert_ne!(make().content(false).key(), make().key());
    assert_ne!(make().progress(false).key(), make().key());
    assert_ne!(
        StreamingLogObserver::new("w-2", Paper::default()).key(),
        make().key()
    );
}

#[test]
fn an_output_that_fails_ends_it() {
    struct Broken;
    impl Write for Broken {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let observer = StreamingLogObserver::new(FLOW, Broken);
    assert!(!observer.is_stale());
    hear(&observer, [sample::content(&job("Write"), "x", false)]);
    assert!(observer.is_stale());
}

// case OBS-19
#[test]
fn it_is_stale_only_after_a_silence_longer_than_its_timeout() {
    let clock = ManualClock::new();
    let shared: Arc<dyn Clock> = Arc::new(clock.clone());
    let forever = StreamingLogObserver::new(FLOW, Paper::default()).clock(Arc::clone(&shared));
    let patient = StreamingLogObserver::new(FLOW, Paper::default())
        .clock(shared)
        .stale_after(Duration::from_secs(60));
    clock.advance(Duration::from_secs(60));
    assert!(!patient.is_stale());
    hear(&patient, [sample::content(&job("Write"), "x", false)]);
    clock.advance(Duration::from_secs(60));
    assert!(!patient.is_stale());
    clock.advance(Duration::from_nanos(1));
    assert!(patient.is_stale());
    clock.advance(Duration::from_secs(1_000_000));
    assert!(!forever.is_stale());
}

#[test]
fn it_ends_at_the_end_of_the_root_that_it_was_given() {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ear = Arc::clone(&heard);
    let (root, other) = (job("Root"), job("Other"));
    let observer = WorkflowObserver::new(FLOW, move |event: &Arc<Event>| {
        ear.lock().unwrap().push(event.message());
        assert!(
            event.family() != crate::events::EventFamily::Workflow,
            "boom"
        );
    })
    .until(root.job_id());
    let clock = Arc::new(ManualClock::new());
    let bus = MessageBus::standalone(clock);
    bus.start();
    let observer = Arc::new(observer);
    let subscription = bus
        .subscribe(observer.filter(), Arc::clone(&observer) as _)
        .unwrap();
    bus.publish(sample::started(&root, 1));
    bus.publish(sample::workflow_complete(&other));
    bus.flush();
    assert!(!observer.has_ended());
    assert_eq!(bus.cleanup_stale_subscriptions(), 0);
    // The observer inside panics at it, and it is the end all the same.
    bus.publish(sample::workflow_complete(&root));
    bus.publish(sample::started(&other, 1));
    assert!(observer.wait_ended(Duration::from_secs(1)));
    bus.flush();
    assert_eq!(
        *heard.lock().unwrap(),
        [
            "Job started (attempt 1)",
            "Workflow completed successfully",
            "Workflow completed successfully",
        ]
    );
    assert_eq!(bus.cleanup_stale_subscriptions(), 1);
    drop(subscription);
}

#[test]
fn a_wait_for_an_end_that_does_not_come_is_over_at_its_deadline() {
    let clock = ManualClock::new();
    let observer = WorkflowObserver::new(FLOW, |_: &Arc<Event>| {}).clock(Arc::new(clock.clone()));
    assert!(!observer.wait_ended(Duration::ZERO));
    let waiting = std::thread::spawn(move || observer.wait_ended(Duration::from_secs(5)));
    while !waiting.is_finished() {
        clock.advance(Duration::from_secs(5));
        std::thread::yield_now();
    }
    assert!(!waiting.join().unwrap());
}
