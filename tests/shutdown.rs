//! The end of a dispatcher, on a clock that the test owns.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::{
    JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, ManualClock, ShutdownError,
    Workflow, doer_fn, job_fn,
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
