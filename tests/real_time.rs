//! The few tests that need the system's own time: bounds in seconds that a user would measure.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{CountingGate, Demand, TokenBucket, TokenBudget};
use nucleo_runtime::db::DbResourceProvider;
use nucleo_runtime::db::sqlite::SqliteProvider;
use nucleo_runtime::events::{Event, EventFilter, EventKind, MessageBus};
use nucleo_runtime::testing::{self, AdmissionBench};
use nucleo_runtime::{
    Clock, DelayedHandle, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements,
    JobResources, JobState, JobType, RetrySignal, ShutdownError, StopOnce, SystemClock,
    UnresponsiveReason, Workflow, doer_fn, job_fn,
};

#[path = "support/hooked_database.rs"]
mod hooked_database;
#[path = "support/stuck.rs"]
mod stuck;

use hooked_database::HookedDatabase;
use stuck::Stuck;

/// One dispatcher with something stuck in it.
struct Scene {
    dispatcher: JobDispatcher,
    workflow: Workflow,
    stuck: Stuck,
    handles: Vec<JobHandle<()>>,
    delayed: Vec<DelayedHandle<()>>,
}

impl Scene {
    fn new(threads: usize) -> Self {
        let dispatcher = JobDispatcher::builder()
            .max_threads(threads)
            .build()
            .unwrap();
        dispatcher.start().unwrap();
        Self {
            dispatcher,
            workflow: Workflow::new("user", "test").unwrap(),
            stuck: Stuck::default(),
            handles: Vec::new(),
            delayed: Vec::new(),
        }
    }

    fn leaf(&mut self, work: impl FnMut(&JobContext) -> Result<(), JobError> + Send + 'static) {
        let mut work = work;
        let job = job_fn(JobRequirements::none, move |_, context| work(context));
        self.handles
            .push(self.dispatcher.submit(&self.workflow, job).unwrap());
    }

    fn until_running(&self) {
        self.stuck.wait_until_reached();
    }

    /// A job that takes the one permit of `gate` and is stuck with it.
    fn holder(&mut self, gate: &Arc<CountingGate>) {
        let (gate, stuck) = (Arc::clone(gate), self.stuck.clone());
        let job = job_fn(
            move || JobRequirements::none().permit(&gate),
            move |_, _| {
                stuck.here();
                Ok(())
            },
        );
        self.handles
            .push(self.dispatcher.submit(&self.workflow, job).unwrap());
        self.until_running();
    }

    fn database(&mut self, close: bool, abort: bool, deaf: bool) {
        let hook = |stuck: bool| -> Box<dyn Fn() + Send + Sync> {
            let stuck = stuck.then(|| self.stuck.clone());
            Box::new(move || stuck.iter().for_each(Stuck::here))
        };
        let provider = Arc::new(HookedDatabase {
            on_close: hook(close),
            on_abort: hook(abort),
            ..HookedDatabase::default()
        });
        let deaf = deaf.then(|| self.stuck.clone());
        let (running, ran) = mpsc::channel();
        let job = job_fn(
            move || JobRequirements::none().provider(&provider),
            move |_, _| {
                running.send(()).unwrap();
                if let Some(stuck) = &deaf {
                    stuck.here();
                }
                Ok(())
            },
        );
        self.handles
            .push(self.dispatcher.submit(&self.workflow, job).unwrap());
        ran.recv().unwrap();
    }
}

/// A guard's job that is stuck.
struct StuckGuard(Stuck);

impl Job for StuckGuard {
    type Output = ();

    fn job_type(&self) -> JobType {
        JobType::Guardrail
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        self.0.here();
        Ok(())
    }
}

type Setting = fn(&mut Scene);

const MATRIX: [(&str, usize, Setting); 14] = [
    ("a leaf that never looks", 64, |scene| {
        let stuck = scene.stuck.clone();
        scene.leaf(move |_| {
            stuck.here();
            Ok(())
        });
        scene.until_running();
    }),
    ("an orchestrator that waits", 64, |scene| {
        let stuck = scene.stuck.clone();
        let job = doer_fn(move |context| {
            let stuck = stuck.clone();
            let child = context.submit(job_fn(JobRequirements::none, move |_, _| {
                stuck.here();
                Ok(())
            }))?;
            child.get().map(drop)
        });
        let handle = scene.dispatcher.submit(&scene.workflow, job).unwrap();
        scene.handles.push(handle);
        scene.until_running();
    }),
    ("a parked waiter", 64, |scene| {
        let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
        scene.holder(&gate);
        let job = job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(()));
        let handle = scene.dispatcher.submit(&scene.workflow, job).unwrap();
        scene.handles.push(handle);
        while scene.dispatcher.admission().queue_len() == 0 {
            thread::yield_now();
        }
    }),
    ("a dependency wait", 64, |scene| {
        let stuck = scene.stuck.clone();
        scene.leaf(move |_| {
            stuck.here();
            Ok(())
        });
        scene.until_running();
        let first = scene.handles[0].clone();
        let job = job_fn(JobRequirements::none, |_, _| Ok(()));
        let after = scene.dispatcher.submit_with(&scene.workflow, job);
        scene.handles.push(after.after(&first).submit().unwrap());
    }),
    ("a wait between attempts", 64, |scene| {
        let (sender, told) = mpsc::channel();
        let subscription = scene.dispatcher.subscribe(
            EventFilter::all().kind(EventKind::TransientRetry),
            Arc::new(move |_: &Arc<Event>| {
                let _ = sender.send(());
            }),
        );
        scene.leaf(|_| Err(RetrySignal::transient("p", "502").into()));
        told.recv().unwrap();
        drop(subscription);
    }),
    ("a delayed submission", 64, |scene| {
        let job = job_fn(JobRequirements::none, |_, _| Ok(()));
        let handle = scene
            .dispatcher
            .submit_delayed(Duration::from_secs(86_400), &scene.workflow, job)
            .unwrap();
        scene.delayed.push(handle);
    }),
    ("a queued job", 8, |scene| {
        let stuck = scene.stuck.clone();
        scene.leaf(move |_| {
            stuck.here();
            Ok(())
        });
        scene.until_running();
        scene.leaf(|_| Ok(()));
        assert_eq!(scene.dispatcher.queue_len(), 1);
    }),
    ("a guard's seat", 64, |scene| {
        let guard = StuckGuard(scene.stuck.clone());
        let handle = scene.dispatcher.submit(&scene.workflow, guard).unwrap();
        scene.handles.push(handle);
        scene.until_running();
    }),
    ("a blocked observer", 64, |scene| {
        let stuck = scene.stuck.clone();
        scene
            .dispatcher
            .subscribe(
                EventFilter::all(),
                Arc::new(move |_: &Arc<Event>| stuck.here()),
            )
            .unwrap()
            .detach();
        scene.leaf(|_| Ok(()));
        scene.until_running();
    }),
    ("a blocked close", 64, |scene| {
        scene.database(true, false, false);
        scene.until_running();
    }),
    ("a blocked abort", 64, |scene| {
        scene.database(false, true, true);
        scene.until_running();
    }),
    ("a blocked close and a blocked abort", 64, |scene| {
        scene.database(true, true, false);
        scene.until_running();
    }),
    ("a stoppable that hangs", 64, |scene| {
        let stuck = scene.stuck.clone();
        let hanging = StopOnce::new(move || stuck.here());
        scene.dispatcher.register_stoppable(Arc::new(hanging));
    }),
    ("a callback that hangs", 64, |scene| {
        let stuck = scene.stuck.clone();
        let (running, ran) = mpsc::channel();
        scene.leaf(move |context| {
            let hanging = stuck.clone();
            context.on_cancel(move || hanging.here());
            running.send(()).unwrap();
            context.sleep(Duration::from_secs(86_400))
        });
        ran.recv().unwrap();
    }),
];

// case F25
#[test]
fn whatever_is_stuck_a_shutdown_is_bounded_and_every_handle_answers() {
    // Side by side: several of them last as long as the bus or a stoppable is given.
    thread::scope(|scope| {
        for (what, threads, set_up) in MATRIX {
            scope.spawn(move || end_with_something_stuck(what, threads, set_up));
        }
    });
}

fn end_with_something_stuck(what: &str, threads: usize, set_up: Setting) {
    {
        let mut scene = Scene::new(threads);
        set_up(&mut scene);
        let timeout = Duration::from_millis(200);
        let before = Instant::now();
        let report = scene.dispatcher.shutdown(timeout).unwrap();
        let took = before.elapsed();
        assert!(
            took <= timeout + Duration::from_secs(15),
            "{what}: {took:?} {report:?}"
        );
        for handle in &scene.handles {
            assert!(handle.is_settled(), "{what}: {handle:?}");
        }
        for delayed in &scene.delayed {
            assert!(delayed.try_get().is_err(), "{what}: {delayed:?}");
        }
        assert_eq!(scene.dispatcher.job_count(), 0, "{what}");
        let again = scene.dispatcher.shutdown(timeout);
        assert_eq!(again, Err(ShutdownError::AlreadyShutDown), "{what}");

        // Nothing is left but what is stuck, and that is listed; then nothing at all.
        let stuck: Vec<_> = scene.dispatcher.unresponsive();
        assert!(stuck.len() <= 2, "{what}: {stuck:?}");
        scene.stuck.let_go();
        while scene.dispatcher.threads().live > 0 {
            thread::yield_now();
        }
        assert!(scene.dispatcher.unresponsive().is_empty(), "{what}");
    }
}

fn sqlite(folder: &std::path::Path) -> Arc<SqliteProvider> {
    let provider = SqliteProvider::builder(folder.join("test.db"))
        .max_connections(1)
        .open()
        .unwrap();
    Arc::new(provider)
}

/// Counts far enough to take a minute.
const A_MINUTE_OF_SQL: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n \
                               WHERE i < 2000000000) SELECT count(*) FROM n";

// case F23
// case ST-10
// case ST-15
#[test]
fn a_statement_that_outlasts_its_timeout_is_broken_off_and_the_database_is_free() {
    let folder = tempfile::tempdir().unwrap();
    let database = sqlite(folder.path());
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let timeout = Duration::from_secs(1);

    let (needed, used) = (Arc::clone(&database), Arc::clone(&database));
    let slow = job_fn(
        move || JobRequirements::none().provider(&needed),
        move |resources, _| {
            resources
                .get(&used)?
                .with(|conn| conn.query_row(A_MINUTE_OF_SQL, [], |row| row.get::<_, i64>(0)))
        },
    )
    .timeout(Some(timeout));
    let before = Instant::now();
    let handle = dispatcher.submit(&workflow, slow).unwrap();
    let error = handle.get().unwrap_err();
    let took = before.elapsed();
    assert!(error.is_timed_out(), "{error:?}");
    assert!(std::error::Error::source(&error).is_some(), "{error:?}");
    assert_eq!(handle.snapshot().state(), JobState::TimedOut);
    assert!(took >= timeout, "{took:?}");
    assert!(took <= timeout + Duration::from_millis(700), "{took:?}");

    let (needed, used) = (Arc::clone(&database), Arc::clone(&database));
    let next = job_fn(
        move || JobRequirements::none().provider(&needed),
        move |resources, _| {
            resources
                .get(&used)?
                .with(|conn| conn.query_row("SELECT 7", [], |row| row.get::<_, i64>(0)))
        },
    );
    let before = Instant::now();
    assert_eq!(
        *dispatcher.submit(&workflow, next).unwrap().get().unwrap(),
        7
    );
    assert!(before.elapsed() < Duration::from_secs(1));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_closure_that_ignores_its_timeout_leaves_an_orphan_that_is_listed_until_it_ends() {
    let folder = tempfile::tempdir().unwrap();
    let database = sqlite(folder.path());
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let stuck = Stuck::default();
    let timeout = Duration::from_secs(1);

    let (needed, used) = (Arc::clone(&database), Arc::clone(&database));
    let sleeping = stuck.clone();
    let deaf = job_fn(
        move || JobRequirements::none().provider(&needed),
        move |resources, _| {
            resources.get(&used)?.with(|_| {
                sleeping.here();
                Ok(())
            })
        },
    )
    .timeout(Some(timeout));
    let before = Instant::now();
    let handle = dispatcher.submit(&workflow, deaf).unwrap();
    let error = handle.get().unwrap_err();
    let took = before.elapsed();
    assert!(error.is_timed_out(), "{error:?}");
    assert!(took >= timeout, "{took:?}");
    // The grace of a one-second timeout is half a second.
    assert!(took <= timeout + Duration::from_millis(700), "{took:?}");

    let listed = dispatcher.unresponsive();
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0].reason, UnresponsiveReason::Abandoned);
    assert_eq!(listed[0].job.job_id(), handle.job_id());
    assert!(
        listed[0].holds.iter().any(|name| name.contains("test")),
        "{listed:?}"
    );
    assert_eq!(
        database.admission().in_use(),
        1,
        "the orphan keeps its permit"
    );
    assert_eq!(database.admission().orphaned(), 1);

    stuck.let_go();
    while !dispatcher.unresponsive().is_empty() || database.admission().in_use() > 0 {
        thread::yield_now();
    }
    assert_eq!(database.admission().orphaned(), 0);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-14
// case RES-16
#[test]
fn phase_two_is_not_stuck_behind_a_close_that_blocks_until_an_abort() {
    let aborted = Stuck::default();
    let (closing, aborting) = (aborted.clone(), aborted);
    let provider = Arc::new(HookedDatabase {
        on_close: Box::new(move || closing.here()),
        on_abort: Box::new(move || aborting.let_go()),
        ..HookedDatabase::default()
    });
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let (needed, stuck) = (Arc::clone(&provider), Stuck::default());
    let deaf = stuck.clone();
    let job = job_fn(
        move || JobRequirements::none().provider(&needed),
        move |_, _| {
            deaf.here();
            Ok(())
        },
    )
    .timeout(Some(Duration::from_secs(1)));
    let before = Instant::now();
    let handle = dispatcher.submit(&workflow, job).unwrap();
    assert!(handle.get().unwrap_err().is_timed_out());
    assert!(before.elapsed() <= Duration::from_millis(1_700));
    assert_eq!(provider.gate.in_use(), 0);
    stuck.let_go();
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(provider.gate.in_use(), 0, "returned once");
}

// case ADM-09
#[test]
fn what_the_clock_refills_is_granted_without_an_event() {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = AdmissionBench::start(Arc::clone(&clock), &bus).unwrap();
    let budget = TokenBudget::new(60_000, 6_000);
    let bucket = Arc::new(TokenBucket::new("model", budget, clock.now()).unwrap());
    let admit = |tokens| {
        let mut demand = Demand::new();
        demand.add(&bucket, tokens);
        let context = testing::context(&clock, &bus, "user", None).unwrap();
        bench.admission().admit(demand, &context).unwrap()
    };
    // Kept, so that nothing is given back.
    let _all = admit(60_000);
    let drained = Instant::now();
    let grant = admit(100);
    let took = drained.elapsed();
    assert!(took >= Duration::from_millis(50), "{took:?}");
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert!(grant.wait() >= Duration::from_millis(50));
}
