//! The end of a dispatcher, on a clock that the test owns.

use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, Demand, RateLimiter, Replenishment,
};
use nucleo_runtime::events::MessageBus;
use nucleo_runtime::testing::AdmissionBench;
use nucleo_runtime::{
    Clock, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, ManualClock,
    ShutdownError, ShutdownReport, Workflow, doer_fn, job_fn, testing,
};

#[path = "support/stuck.rs"]
mod stuck;

use stuck::Stuck;

/// One dispatcher with something stuck in it.
struct Scene {
    clock: ManualClock,
    dispatcher: JobDispatcher,
    workflow: Workflow,
    stuck: Stuck,
    handles: Vec<JobHandle<()>>,
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
    let (running, runs) = mpsc::channel();
    let mut scene = scene;
    scene.leaf(move |context| {
        running.send(()).unwrap();
        context.sleep(Duration::from_secs(86_400))
    });
    runs.recv().unwrap();
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

/// A permit that drops what it was given when it is asked.
struct Dropping {
    key: AccountKey,
    dispatcher: Mutex<Option<JobDispatcher>>,
}

impl RateLimiter for Dropping {
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
        drop(self.dispatcher.lock().unwrap().take());
        Ok(true)
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {}

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

fn one<L: RateLimiter<Amount = ()>>(limiter: &Arc<L>) -> Demand {
    let mut demand = Demand::new();
    demand.add(limiter, ());
    demand
}

fn context_of(dispatcher: &JobDispatcher) -> JobContext {
    testing::context(dispatcher.clock(), dispatcher.bus(), "user", None).unwrap()
}

#[test]
fn the_end_of_a_dispatcher_that_never_started_refuses_whoever_waits_or_asks() {
    let shut_down: fn(JobDispatcher) = |dispatcher| {
        let report = dispatcher.shutdown(Duration::from_secs(1)).unwrap();
        assert_eq!(report, ShutdownReport::default());
    };
    let dropped: fn(JobDispatcher) = drop;
    let dropped_by_an_account: fn(JobDispatcher) = |dispatcher| {
        let other = JobDispatcher::builder().build().unwrap();
        let dropping = Dropping {
            key: AccountKey::new("dropping"),
            dispatcher: Mutex::new(Some(dispatcher)),
        };
        let asked = other
            .admission()
            .admit(one(&Arc::new(dropping)), &context_of(&other));
        drop(asked.unwrap());
    };
    for end in [shut_down, dropped, dropped_by_an_account] {
        let dispatcher = JobDispatcher::builder().build().unwrap();
        let gate = Arc::new(CountingGate::new("gate", 1).unwrap());
        let (admission, context) = (dispatcher.admission().clone(), context_of(&dispatcher));
        let held = admission.admit(one(&gate), &context).unwrap();
        let waiting = {
            let (admission, context, gate) = (admission.clone(), context.clone(), gate.clone());
            thread::spawn(move || admission.admit(one(&gate), &context))
        };
        while admission.queue_len() == 0 {
            thread::yield_now();
        }
        end(dispatcher);
        assert!(waiting.join().unwrap().unwrap_err().is_cancelled());
        let free = Arc::new(CountingGate::new("free", 1).unwrap());
        assert!(
            admission
                .admit(one(&free), &context)
                .unwrap_err()
                .is_cancelled()
        );
        drop(held);
        assert_eq!(gate.in_use(), 0);
        // Another dispatcher may have the account.
        let next = JobDispatcher::builder().build().unwrap();
        drop(
            next.admission()
                .admit(one(&gate), &context_of(&next))
                .unwrap(),
        );
    }
}

#[test]
fn nobody_waits_for_the_quiet_of_threads_that_are_not_there() {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    testing::quiesce(&dispatcher);
    dispatcher.start().unwrap();
    testing::quiesce(&dispatcher);
    dispatcher.shutdown(Duration::from_secs(1)).unwrap();
    testing::quiesce(&dispatcher);

    let clock: Arc<dyn Clock> = Arc::new(clock);
    let bus = MessageBus::standalone(Arc::clone(&clock));
    let bench = AdmissionBench::start(clock, &bus).unwrap();
    bench.quiesce();
    bench.stop();
    bench.quiesce();
}
