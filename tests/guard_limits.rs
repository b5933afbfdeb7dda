//! What is asked before anything is granted takes no longer than the work may.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nucleo_runtime::guard::{ContentGuard, Gate, Guard, Guards, JobInput};
use nucleo_runtime::testing::quiesce;
use nucleo_runtime::{
    Doer, Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, JobState,
    ManualClock, OrchestratorContext, UnresponsiveReason, Workflow,
};

#[path = "support/stuck.rs"]
mod stuck;

use stuck::Stuck;

/// What of it is stuck.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Place {
    Text,
    GuardName,
    GuardRequirements,
    GuardAttempt,
    Attempt,
}

struct Input(Place, Stuck);

impl JobInput for Input {
    fn text(&self) -> Option<String> {
        if self.0 == Place::Text {
            self.1.here();
        }
        Some("text".to_owned())
    }
}

struct Passing {
    place: Place,
    stuck: Stuck,
    asked: AtomicUsize,
}

impl Guard for Passing {
    fn name(&self) -> Cow<'static, str> {
        if self.place == Place::GuardName {
            self.stuck.here();
        }
        "Passing".into()
    }

    fn requirements(&self) -> JobRequirements {
        let first = self.asked.fetch_add(1, Ordering::SeqCst) == 0;
        match self.place {
            Place::GuardRequirements if first => self.stuck.here(),
            Place::GuardAttempt if !first => self.stuck.here(),
            _ => {}
        }
        JobRequirements::none()
    }
}

impl ContentGuard for Passing {
    type Target = str;

    fn judge(&self, _: &str, _: &Gate<'_>) -> Result<(), JobError> {
        Ok(())
    }
}

struct Tool {
    place: Place,
    stuck: Stuck,
    timeout: Option<Duration>,
    asked: AtomicUsize,
    ran: Arc<AtomicUsize>,
}

impl Tool {
    fn guards(&self) -> Guards {
        Guards::none().input(Passing {
            place: self.place,
            stuck: self.stuck.clone(),
            asked: AtomicUsize::new(0),
        })
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::new(Input(self.place, self.stuck.clone())))
    }
}

impl Job for Tool {
    type Output = ();

    fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    fn guards(&self) -> Guards {
        self.guards()
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        self.input()
    }

    fn requirements(&self) -> JobRequirements {
        let first = self.asked.fetch_add(1, Ordering::SeqCst) == 0;
        if self.place == Place::Attempt && !first {
            self.stuck.here();
        }
        JobRequirements::none()
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        self.ran.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Orchestrating(Tool);

impl Doer for Orchestrating {
    type Output = ();

    fn guards(&self) -> Guards {
        self.0.guards()
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        self.0.input()
    }

    fn execute(&mut self, _: &OrchestratorContext) -> Result<(), JobError> {
        self.0.ran.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

struct Scene {
    dispatcher: JobDispatcher,
    workflow: Workflow,
    clock: Arc<ManualClock>,
}

fn scene() -> Scene {
    let clock = Arc::new(ManualClock::new());
    let dispatcher = JobDispatcher::builder()
        .clock(clock.clone())
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    Scene {
        dispatcher,
        workflow: Workflow::new("alice", "test").unwrap(),
        clock,
    }
}

fn tool(place: Place, stuck: Stuck, timeout: Option<Duration>) -> Tool {
    Tool {
        place,
        stuck,
        timeout,
        asked: AtomicUsize::new(0),
        ran: Arc::default(),
    }
}

#[test]
fn an_answer_that_does_not_come_times_the_job_out() {
    for place in [
        Place::Text,
        Place::GuardName,
        Place::GuardRequirements,
        Place::Attempt,
    ] {
        let scene = scene();
        let stuck = Stuck::default();
        let tool = tool(place, stuck.clone(), Some(Duration::from_secs(2)));
        let ran = Arc::clone(&tool.ran);
        let handle = scene.dispatcher.submit(&scene.workflow, tool).unwrap();
        stuck.wait_until_reached();
        scene.clock.advance(Duration::from_secs(2));
        quiesce(&scene.dispatcher);
        // The grace.
        scene.clock.advance(Duration::from_millis(500));
        let error = handle.get().unwrap_err();
        assert!(error.is_timed_out(), "{place:?}: {error:?}");
        assert_eq!(handle.snapshot().state(), JobState::TimedOut, "{place:?}");
        let left = scene.dispatcher.unresponsive();
        assert_eq!(left.len(), 1, "{place:?}: {left:?}");
        assert_eq!(left[0].reason, UnresponsiveReason::Abandoned);
        stuck.let_go();
        scene.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
        assert_eq!(ran.load(Ordering::SeqCst), 0, "{place:?}");
    }
}

#[test]
fn a_guard_that_does_not_say_what_its_attempt_needs_fails_the_job_when_its_own_time_is_over() {
    let scene = scene();
    let stuck = Stuck::default();
    let tool = tool(Place::GuardAttempt, stuck.clone(), None);
    let ran = Arc::clone(&tool.ran);
    let handle = scene.dispatcher.submit(&scene.workflow, tool).unwrap();
    stuck.wait_until_reached();
    scene.clock.advance(Duration::from_secs(10));
    quiesce(&scene.dispatcher);
    scene.clock.advance(Duration::from_secs(1));
    let error = handle.get().unwrap_err();
    assert!(error.is_timed_out(), "{error:?}");
    assert_eq!(handle.snapshot().state(), JobState::Failed);
    stuck.let_go();
    scene.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn a_job_without_a_timeout_waits_half_a_minute_for_an_answer() {
    let scene = scene();
    let stuck = Stuck::default();
    let doer = Orchestrating(tool(Place::Text, stuck.clone(), None));
    let ran = Arc::clone(&doer.0.ran);
    let handle = scene.dispatcher.submit(&scene.workflow, doer).unwrap();
    stuck.wait_until_reached();
    scene.clock.advance(Duration::from_secs(29));
    quiesce(&scene.dispatcher);
    assert!(handle.try_get().unwrap().is_none());
    scene.clock.advance(Duration::from_secs(1));
    quiesce(&scene.dispatcher);
    scene.clock.advance(Duration::from_secs(30));
    assert!(handle.get().unwrap_err().is_timed_out());
    stuck.let_go();
    scene.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 0);
}

#[test]
fn an_answer_that_comes_in_time_leaves_no_deadline_and_no_alarm() {
    let scene = scene();
    let stuck = Stuck::default();
    let tool = tool(Place::Text, stuck.clone(), Some(Duration::from_secs(2)));
    let ran = Arc::clone(&tool.ran);
    let handle = scene.dispatcher.submit(&scene.workflow, tool).unwrap();
    stuck.wait_until_reached();
    scene.clock.advance(Duration::from_secs(1));
    stuck.let_go();
    handle.get().unwrap();
    scene.clock.advance(Duration::from_secs(10));
    quiesce(&scene.dispatcher);
    assert_eq!(handle.snapshot().state(), JobState::Completed);
    assert!(scene.dispatcher.unresponsive().is_empty());
    scene.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(ran.load(Ordering::SeqCst), 1);
}
