//! How a job ends, where its end is long, stuck or asked for twice: everybody is told the same.

use std::cell::Cell;
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment,
};
use nucleo_runtime::{
    Clock, ErrorKind, JobDispatcher, JobError, JobRequirements, JobState, ManualClock,
    ShutdownError, UpstreamFailure, WaitCell, Workflow, job_fn,
};

#[path = "support/stuck.rs"]
mod stuck;

use stuck::Stuck;

#[test]
fn a_long_chain_of_failed_dependencies_ends_with_the_first_failure_in_reach() {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let stuck = Stuck::default();
    let first = stuck.clone();
    let mut last = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, _| {
                first.here();
                Err::<(), _>(JobError::uncorrectable("the first"))
            }),
        )
        .unwrap();
    for _ in 0..10_000 {
        last = dispatcher
            .submit_with(&workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
            .after(&last)
            .submit()
            .unwrap();
    }
    stuck.let_go();
    let error = last.get().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::DependencyFailed { .. }));
    let mut deepest: &dyn Error = &error;
    while let Some(cause) = deepest.source() {
        deepest = cause;
    }
    assert_eq!(deepest.to_string(), "the first");
    assert!(format!("{error:?}").len() < 10_000);
    drop((last, error));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

/// A limit that does not get over hearing of an error, or of a success.
struct Deaf {
    key: AccountKey,
    stuck: Stuck,
}

impl RateLimiter for Deaf {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {}

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }

    fn on_success(&self, _: Instant) {
        self.stuck.here();
    }

    fn on_rate_limit_error(&self, _: &UpstreamFailure, _: Instant) {
        self.stuck.here();
    }
}

struct Scene {
    dispatcher: JobDispatcher,
    workflow: Workflow,
    clock: ManualClock,
}

impl Scene {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self::on(clock.clone(), Arc::new(clock))
    }

    fn on(clock: ManualClock, shown: Arc<dyn Clock>) -> Self {
        let dispatcher = JobDispatcher::builder().clock(shown).build().unwrap();
        dispatcher.start().unwrap();
        Self {
            dispatcher,
            workflow: Workflow::new("user", "test").unwrap(),
            clock,
        }
    }

    /// Lets time pass until it is so.
    fn pass_until(&self, it_is_so: impl Fn() -> bool) {
        while !it_is_so() {
            self.clock.advance(Duration::from_millis(100));
            thread::yield_now();
        }
    }
}

#[test]
fn a_job_whose_work_is_over_ends_with_what_it_decided_also_when_its_end_is_stuck() {
    for fails in [true, false] {
        let scene = Scene::new();
        let stuck = Stuck::default();
        let limit = Arc::new(Deaf {
            key: AccountKey::new("deaf"),
            stuck: stuck.clone(),
        });
        let job = job_fn(
            move || JobRequirements::none().limiter(&limit, ()),
            move |_, _| match fails {
                true => Err(JobError::external("svc", "down")),
                false => Ok(7),
            },
        )
        .timeout(Some(Duration::from_secs(2)));
        let handle = scene.dispatcher.submit(&scene.workflow, job).unwrap();
        stuck.wait_until_reached();
        scene.pass_until(|| handle.is_settled());
        let state = handle.snapshot().state();
        match handle.get() {
            Ok(value) => assert_eq!((*value, state), (7, JobState::Completed)),
            Err(error) => {
                assert!(fails && error.to_string().contains("down"), "{error}");
                assert_eq!(state, JobState::Failed);
            }
        }
        // Its thread is still there, and the end of the dispatcher says so.
        let ended = thread::scope(|scope| {
            let ending = scope.spawn(|| scene.dispatcher.shutdown(Duration::from_secs(1)));
            scene.pass_until(|| ending.is_finished());
            ending.join().unwrap().unwrap()
        });
        assert_eq!(ended.abandoned, [handle.job_id()]);
        stuck.let_go();
    }
}

/// A clock that says how many of the threads that asked to be noticed have come to wait.
#[derive(Debug)]
struct Noticing {
    clock: ManualClock,
    waiting: AtomicUsize,
}

thread_local! {
    static IS_NOTICED: Cell<bool> = const { Cell::new(false) };
}

impl Clock for Noticing {
    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn wall(&self) -> SystemTime {
        self.clock.wall()
    }

    fn wait_until(&self, cell: &Arc<WaitCell>, seen: u64, deadline: Option<Instant>) {
        if IS_NOTICED.replace(false) {
            self.waiting.fetch_add(1, Ordering::SeqCst);
        }
        self.clock.wait_until(cell, seen, deadline);
    }
}

fn noticed() -> (Scene, Arc<Noticing>) {
    let clock = ManualClock::new();
    let noticing = Arc::new(Noticing {
        clock: clock.clone(),
        waiting: AtomicUsize::new(0),
    });
    (Scene::on(clock, noticing.clone()), noticing)
}

impl Noticing {
    fn until_waiting(&self, threads: usize) {
        while self.waiting.load(Ordering::SeqCst) < threads {
            thread::yield_now();
        }
    }
}

#[test]
fn a_second_shutdown_waits_for_the_first_and_answers_its_report() {
    let (scene, noticing) = noticed();
    let (told, runs) = mpsc::channel();
    let stuck = Stuck::default();
    let here = stuck.clone();
    let job = job_fn(JobRequirements::none, move |_, _| {
        told.send(()).unwrap();
        here.here();
        Ok(())
    });
    let handle = scene.dispatcher.submit(&scene.workflow, job).unwrap();
    runs.recv().unwrap();
    thread::scope(|scope| {
        let first = scope.spawn(|| scene.dispatcher.shutdown(Duration::from_secs(60)));
        // Begun, when nobody is taken any more.
        while scene
            .dispatcher
            .submit(
                &scene.workflow,
                job_fn(JobRequirements::none, |_, _| Ok(())),
            )
            .is_ok()
        {
            thread::yield_now();
        }
        let later = |timeout| {
            IS_NOTICED.set(true);
            scene.dispatcher.shutdown(Duration::from_secs(timeout))
        };
        let patient = scope.spawn(move || later(1 << 40));
        let hasty = scope.spawn(move || later(1));
        // No time passes before both wait: the first would be over.
        noticing.until_waiting(2);
        scene.clock.advance(Duration::from_secs(1));
        while !hasty.is_finished() {
            thread::yield_now();
        }
        assert_eq!(
            hasty.join().unwrap(),
            Err(ShutdownError::StillRunning(Duration::from_secs(1)))
        );
        assert!(!first.is_finished());
        scene.pass_until(|| first.is_finished() && patient.is_finished());
        let report = first.join().unwrap().unwrap();
        assert_eq!(report.abandoned, [handle.job_id()]);
        assert_eq!(patient.join().unwrap(), Ok(report));
    });
    assert_eq!(
        scene.dispatcher.shutdown(Duration::from_secs(1)),
        Err(ShutdownError::AlreadyShutDown)
    );
    stuck.let_go();
}

#[test]
fn a_shutdown_that_a_job_began_can_be_waited_for() {
    let (scene, noticing) = noticed();
    let dispatcher = scene.dispatcher.clone();
    let (told, begun) = mpsc::channel();
    let stuck = Stuck::default();
    let here = stuck.clone();
    let job = job_fn(JobRequirements::none, move |_, _| {
        told.send(dispatcher.shutdown(Duration::from_secs(60)))
            .unwrap();
        here.here();
        Ok(())
    });
    let handle = scene.dispatcher.submit(&scene.workflow, job).unwrap();
    assert_eq!(begun.recv().unwrap(), Err(ShutdownError::FromInside));
    thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            IS_NOTICED.set(true);
            scene.dispatcher.shutdown(Duration::from_secs(600))
        });
        noticing.until_waiting(1);
        stuck.let_go();
        handle.get().unwrap();
        assert!(waiting.join().unwrap().unwrap().abandoned.is_empty());
    });
}
