//! Who a job is, and what it says of itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, ThreadId};
use std::time::Duration;

use nucleo_runtime::events::EventKind;
use nucleo_runtime::{
    DEFAULT_TIMEOUT, DEFAULT_UPSTREAM_RETRIES, ErrorKind, Job, JobContext, JobError,
    JobRequirements, JobResources, JobState, JobType, Workflow, doer_fn, job_fn, testing,
};

use crate::support::Host;

/// A job that says nothing of itself.
struct Plain;

impl Job for Plain {
    type Output = ();

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

/// A job that says everything, and counts how often it is asked, and by whom.
struct Talkative {
    asked: Arc<AtomicUsize>,
    asker: ThreadId,
}

impl Talkative {
    fn say<T>(&self, answer: T) -> T {
        self.asked.fetch_add(1, Ordering::SeqCst);
        assert_eq!(thread::current().id(), self.asker);
        answer
    }
}

impl Job for Talkative {
    type Output = ();

    fn type_path(&self) -> &'static str {
        self.say("shop::tools::Talkative<u8>")
    }

    fn id_prefix(&self) -> Option<String> {
        self.say(Some("talk".to_owned()))
    }

    fn name(&self) -> Option<String> {
        self.say(Some("the talkative one".to_owned()))
    }

    fn display_name(&self) -> Option<String> {
        self.say(Some("Talkative, on display".to_owned()))
    }

    fn action(&self) -> String {
        self.say("Naming".to_owned())
    }

    fn description(&self) -> Option<String> {
        self.say(Some("says a lot".to_owned()))
    }

    fn job_type(&self) -> JobType {
        self.say(JobType::Tool)
    }

    fn priority(&self) -> i32 {
        self.say(7)
    }

    fn timeout(&self) -> Option<Duration> {
        self.say(Some(Duration::from_secs(60)))
    }

    fn upstream_retries(&self) -> u32 {
        self.say(1)
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

// case ID-01
#[test]
fn a_workflow_is_its_own_root_and_its_jobs_have_no_parent() {
    let workflow = Workflow::new("user-1", "ingest").unwrap();
    assert!(workflow.id().starts_with("ingest-"));
    assert_eq!(workflow.user(), "user-1");

    let host = Host::new();
    let snapshot = host.dispatcher.submit(&workflow, Plain).unwrap().snapshot();
    assert_eq!(snapshot.workflow_id(), workflow.id());
    assert_eq!(snapshot.user(), "user-1");
    assert_eq!(snapshot.parent_id(), None);
    assert!(snapshot.is_root());
}

// case ID-02
#[test]
fn a_workflow_without_a_user_or_a_prefix_is_refused() {
    for (user, prefix) in [("", "p"), ("  ", "p"), ("u", ""), ("u", "\t")] {
        let refused = Workflow::new(user, prefix).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::InvalidInput { .. }));
    }
}

#[test]
fn a_child_inherits_workflow_and_user_and_names_its_parent() {
    let host = Host::new();
    let parent = host.submit(doer_fn(|context| {
        let child = context.submit(Plain)?;
        child.get()?;
        Ok(child.snapshot())
    }));
    let child = parent.get().unwrap();
    assert_eq!(child.parent_id(), Some(parent.job_id()));
    assert_eq!(child.workflow_id(), host.workflow.id());
    assert_eq!(child.user(), "alice");
    assert!(!child.is_root());
}

// case ID-04
#[test]
fn an_id_starts_with_the_jobs_own_prefix_else_with_its_types_simple_name() {
    let host = Host::new();
    assert!(host.submit(Plain).job_id().starts_with("Plain-"));
    let named = job_fn(JobRequirements::none, |_, _| Ok(())).named("lookup");
    assert!(host.submit(named).job_id().starts_with("lookup-"));
    let boxed: Box<dyn Job<Output = ()>> = Box::new(Plain);
    assert!(host.submit(boxed).job_id().starts_with("Plain-"));
}

// case ID-05
#[test]
fn two_jobs_of_one_parent_and_one_prefix_have_different_ids() {
    let host = Host::new();
    assert_ne!(host.submit(Plain).job_id(), host.submit(Plain).job_id());
}

// case ID-07
#[test]
fn a_job_that_overrides_nothing_has_the_defaults() {
    assert_eq!(DEFAULT_TIMEOUT, Duration::from_secs(30 * 60));
    assert_eq!(Plain.job_type(), JobType::Job);
    assert_eq!(Plain.display_name(), None);
    assert_eq!(Plain.timeout(), Some(DEFAULT_TIMEOUT));
    assert_eq!(Plain.priority(), 0);
    assert_eq!(Plain.upstream_retries(), 3);
    assert_eq!(DEFAULT_UPSTREAM_RETRIES, 3);
    let without = job_fn(JobRequirements::none, |_, _| Ok(())).timeout(None);
    assert_eq!(Job::timeout(&without), None);

    let host = Host::new();
    let snapshot = host.submit(Plain).snapshot();
    assert_eq!(snapshot.job_type(), JobType::Job);
    assert_eq!(snapshot.priority(), 0);
    assert_eq!(snapshot.name(), format!("Plain-{}", snapshot.job_id()));
}

// case ID-09
#[test]
fn a_snapshot_shows_what_the_job_says_of_itself_else_its_types_name() {
    let host = Host::new();
    let talkative = Talkative {
        asked: Arc::default(),
        asker: thread::current().id(),
    };
    let snapshot = host.submit(talkative).snapshot();
    assert!(snapshot.job_id().starts_with("talk-"));
    assert_eq!(snapshot.type_path(), "shop::tools::Talkative<u8>");
    assert_eq!(snapshot.type_name(), "Talkative");
    assert_eq!(snapshot.name(), "the talkative one");
    assert_eq!(snapshot.display_name(), "Talkative, on display");
    assert_eq!(snapshot.action(), "Naming");
    assert_eq!(snapshot.description(), Some("says a lot"));
    assert_eq!(snapshot.job_type(), JobType::Tool);
    assert_eq!(snapshot.priority(), 7);

    let plain = host.submit(Plain).snapshot();
    assert_eq!(plain.display_name(), "Plain");
    assert_eq!(plain.action(), "");
    assert_eq!(plain.description(), None);
}

// case ID-10
#[test]
fn a_fresh_snapshot_is_queued_with_no_attempt() {
    let host = Host::new();
    let context =
        testing::context(host.dispatcher.clock(), host.dispatcher.bus(), "u", None).unwrap();
    let snapshot = context.snapshot();
    assert_eq!(snapshot.state(), JobState::Queued);
    assert_eq!(snapshot.attempt(), 0);
    assert_eq!(snapshot.type_name(), "TestJob");
    assert_eq!(snapshot.display_name(), "TestJob");
}

// case ID-11
#[test]
fn a_derived_snapshot_leaves_the_original_as_it_was() {
    let host = Host::new();
    let context =
        testing::context(host.dispatcher.clock(), host.dispatcher.bus(), "u", None).unwrap();
    let original = context.snapshot();
    let derived = original.derive(JobState::Running, 2, "later");
    assert_eq!(derived.state(), JobState::Running);
    assert_eq!(derived.attempt(), 2);
    assert_eq!(derived.description(), Some("later"));
    assert_eq!(derived.job_id(), original.job_id());
    assert_eq!(original.state(), JobState::Queued);
    assert_eq!(original, context.snapshot());
    assert_ne!(derived, original);
}

// case ID-12
#[test]
fn the_states_that_end_a_job_and_those_that_are_failures() {
    use JobState::{Cancelled, Completed, Failed, Idle, Queued, Running, Scheduled, TimedOut};
    let answers = |state: JobState| {
        [
            state.is_terminal(),
            state.is_active(),
            state.is_failure(),
            state.is_success(),
        ]
    };
    for state in [Queued, Scheduled, Running, Idle] {
        assert_eq!(answers(state), [false, true, false, false], "{state}");
    }
    assert_eq!(answers(Completed), [true, false, false, true]);
    assert_eq!(answers(Cancelled), [true, false, false, false]);
    assert_eq!(answers(Failed), [true, false, true, false]);
    assert_eq!(answers(TimedOut), [true, false, true, false]);
}

#[test]
fn a_job_describes_itself_once_on_the_thread_that_submits_it() {
    let host = Host::new();
    let asked = Arc::new(AtomicUsize::new(0));
    let handle = host.submit(Talkative {
        asked: Arc::clone(&asked),
        asker: thread::current().id(),
    });
    handle.get().unwrap();
    host.kinds(&handle);
    assert_eq!(asked.load(Ordering::SeqCst), 10, "ten questions, each once");
}

#[test]
fn a_job_that_panics_while_it_describes_itself_is_born_failed() {
    struct Mute;
    impl Job for Mute {
        type Output = ();
        fn name(&self) -> Option<String> {
            panic!("no name to give")
        }
        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            Ok(())
        }
    }
    let host = Host::new();
    let handle = host.submit(Mute);
    let error = handle.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }));
    assert!(error.to_string().contains("no name to give"), "{error}");
    assert_eq!(
        host.kinds(&handle),
        [EventKind::JobFailed, EventKind::WorkflowComplete]
    );
    assert_eq!(host.dispatcher.job_count(), 0);
}

#[cfg(feature = "serde")]
#[test]
fn a_snapshot_is_written_with_the_names_of_its_questions() {
    let host = Host::new();
    let handle = host.submit(Plain);
    handle.get().unwrap();
    let written = serde_json::to_value(handle.snapshot()).unwrap();
    assert_eq!(written["job_id"], handle.job_id());
    assert_eq!(written["workflow_id"], host.workflow.id());
    assert_eq!(written["parent_id"], serde_json::Value::Null);
    assert_eq!(written["state"], "Completed");
    assert_eq!(written["attempt"], 1);
}

#[test]
fn what_shows_nothing_is_no_name() {
    for blank in ["\u{200b}", "\u{feff} \u{2060}", "\u{ad}"] {
        assert!(Workflow::new(blank, "p").is_err(), "{blank:?}");
        assert!(Workflow::new("u", blank).is_err(), "{blank:?}");
    }
    let host = Host::new();
    let job = job_fn(JobRequirements::none, |_, _| Ok(())).named("\u{200b}");
    let handle = host.submit(job);
    assert!(handle.job_id().starts_with("FnJob-"), "{handle:?}");
    handle.get().unwrap();
}
