//! The end of a dispatcher: whatever is stuck, it is bounded, and every handle answers.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{CountingGate, DatabaseGate};
use nucleo_runtime::db::{Abort, DbManagedResource, DbResourceProvider};
use nucleo_runtime::events::{Event, EventFilter, EventKind};
use nucleo_runtime::{
    DelayedHandle, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements,
    JobResources, JobType, ManualClock, RetrySignal, ShutdownError, StopOnce, Workflow, doer_fn,
    job_fn,
};

/// Where stuck things are stuck, until the test lets them go.
#[derive(Clone, Default)]
struct Stuck {
    open: Arc<(Mutex<bool>, Condvar)>,
    reached: Arc<AtomicBool>,
}

impl Stuck {
    fn here(&self) {
        self.reached.store(true, Ordering::SeqCst);
        let (open, opened) = &*self.open;
        let mut open = open.lock().unwrap();
        while !*open {
            open = opened.wait(open).unwrap();
        }
    }

    fn wait_until_reached(&self) {
        while !self.reached.load(Ordering::SeqCst) {
            thread::yield_now();
        }
    }

    fn let_go(&self) {
        *self.open.0.lock().unwrap() = true;
        self.open.1.notify_all();
    }
}

/// A provider whose close, and if asked its abort too, is stuck.
struct StuckDatabase {
    gate: Arc<DatabaseGate>,
    close: Option<Stuck>,
    abort: Option<Stuck>,
}

#[derive(Clone)]
struct StuckHandle;

impl DbManagedResource for StuckHandle {
    fn provider(&self) -> &str {
        "stuck"
    }
}

impl DbResourceProvider for StuckDatabase {
    type Handle = StuckHandle;

    fn name(&self) -> &str {
        "stuck"
    }

    fn admission(&self) -> Arc<DatabaseGate> {
        Arc::clone(&self.gate)
    }

    fn acquire(&self, _: bool, _: Option<Instant>) -> Result<StuckHandle, JobError> {
        Ok(StuckHandle)
    }

    fn begin(&self, _: &StuckHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn commit(&self, _: &StuckHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn await_visible(&self, _: &StuckHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn rollback(&self, _: &StuckHandle) -> Result<(), JobError> {
        Ok(())
    }

    fn close(&self, _: &StuckHandle) -> Result<(), JobError> {
        if let Some(stuck) = &self.close {
            stuck.here();
        }
        Ok(())
    }

    fn abort(&self, _: &StuckHandle, _: Instant) -> Result<Abort, JobError> {
        if let Some(stuck) = &self.abort {
            stuck.here();
        }
        Ok(Abort::Severed)
    }
}

/// One dispatcher with something stuck in it.
struct Scene {
    clock: ManualClock,
    dispatcher: JobDispatcher,
    workflow: Workflow,
    stuck: Stuck,
    handles: Vec<JobHandle<()>>,
    delayed: Vec<DelayedHandle<()>>,
}

impl Scene {
    fn new(threads: usize) -> Self {
        let clock = ManualClock::new();
        let dispatcher = JobDispatcher::builder()
            .clock(Arc::new(clock.clone()))
            .max_threads(threads)
            .build()
            .unwrap();
        dispatcher.start().unwrap();
        Self {
            clock,
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
        let provider = Arc::new(StuckDatabase {
            gate: Arc::new(CountingGate::database("stuck", 1).unwrap()),
            close: close.then(|| self.stuck.clone()),
            abort: abort.then(|| self.stuck.clone()),
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
    for (what, threads, set_up) in MATRIX {
        let mut scene = Scene::new(threads);
        set_up(&mut scene);
        let timeout = Duration::from_secs(2);
        let before = scene.clock.elapsed();
        let report = thread::scope(|scope| {
            let ending = scope.spawn(|| scene.dispatcher.shutdown(timeout));
            while !ending.is_finished() {
                scene.clock.advance(Duration::from_millis(20));
                thread::yield_now();
            }
            ending.join().unwrap().unwrap()
        });
        let took = scene.clock.elapsed() - before;
        // The clock runs on a little between the end and the look at it.
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

#[test]
fn a_job_cannot_wait_for_its_own_end_but_begins_it() {
    let scene = Scene::new(64);
    let dispatcher = scene.dispatcher.clone();
    let handle = scene
        .dispatcher
        .submit(
            &scene.workflow,
            job_fn(JobRequirements::none, move |_, _| {
                Ok(dispatcher.shutdown(Duration::from_secs(1)))
            }),
        )
        .unwrap();
    assert_eq!(*handle.get().unwrap(), Err(ShutdownError::FromInside));
    while scene.dispatcher.threads().live > 0 {
        thread::yield_now();
    }
    assert!(scene.dispatcher.start().is_err());
}

#[test]
fn dropping_the_last_dispatcher_ends_everything_without_waiting() {
    let scene = Scene::new(64);
    let stuck = scene.stuck.clone();
    let mut scene = scene;
    scene.leaf(move |context| {
        stuck.reached.store(true, Ordering::SeqCst);
        context.sleep(Duration::from_secs(86_400))
    });
    scene.until_running();
    let Scene {
        clock,
        dispatcher,
        handles,
        ..
    } = scene;
    drop(dispatcher);
    let ended = thread::spawn(move || handles[0].get().unwrap_err());
    while !ended.is_finished() {
        clock.advance(Duration::from_millis(10));
        thread::yield_now();
    }
    assert!(ended.join().unwrap().is_cancelled());
}

#[test]
fn a_drain_lets_running_workflows_finish_and_takes_no_roots() {
    let mut scene = Scene::new(64);
    let stuck = scene.stuck.clone();
    let job = doer_fn(move |context| {
        stuck.here();
        let child = context.submit(job_fn(JobRequirements::none, |_, _| Ok(())))?;
        child.get().map(drop)
    });
    let root = scene.dispatcher.submit(&scene.workflow, job).unwrap();
    scene.until_running();
    thread::scope(|scope| {
        let draining = scope.spawn(|| scene.dispatcher.drain(Duration::from_secs(60)));
        loop {
            let refused = scene.dispatcher.submit(
                &scene.workflow,
                job_fn(JobRequirements::none, |_, _| Ok(())),
            );
            match refused {
                Ok(taken) => taken.get().map(drop).unwrap(),
                Err(_) => break,
            }
        }
        scene.stuck.let_go();
        assert!(draining.join().unwrap().unwrap());
    });
    root.get().unwrap();
    scene.handles.clear();
    scene.dispatcher.shutdown(Duration::from_secs(1)).unwrap();
}
