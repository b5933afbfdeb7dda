//! What has to be there when the system refuses every thread.

use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use super::JobDispatcher;
use crate::clock::ManualClock;
use crate::job::{Job, JobContext, JobRequirements, JobResources, Workflow, job_fn};
use crate::{JobError, JobHandle, ShutdownError};

const TIMEOUT: Duration = Duration::from_millis(500);

struct Scene {
    clock: ManualClock,
    dispatcher: JobDispatcher,
    workflow: Workflow,
}

fn scene(threads: usize) -> Scene {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .max_threads(threads)
        .without_memory_gate()
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    Scene {
        clock,
        dispatcher,
        workflow: Workflow::new("user", "test").unwrap(),
    }
}

impl Scene {
    fn refuse_spawns(&self) {
        self.dispatcher.inner().threads().refuse_spawns(true);
    }

    /// Lets time go by until the handle answers.
    fn answer(&self, handle: &JobHandle<()>) -> Result<Arc<()>, JobError> {
        let begun = Instant::now();
        while !handle.is_settled() {
            assert!(begun.elapsed() < Duration::from_secs(30), "it never comes");
            self.clock.advance(Duration::from_millis(10));
            thread::yield_now();
        }
        handle.get()
    }
}

/// A job that does not come back when it is asked what it needs for the second time, which is on its own thread.
struct AskHangs {
    asked: mpsc::Sender<()>,
    gate: crate::sync::Mutex<mpsc::Receiver<()>>,
    times: std::sync::atomic::AtomicUsize,
}

impl AskHangs {
    fn new(asked: mpsc::Sender<()>) -> (Self, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        let job = Self {
            asked,
            gate: crate::sync::Mutex::new(gate),
            times: Default::default(),
        };
        (job, open)
    }
}

impl Job for AskHangs {
    type Output = ();

    fn requirements(&self) -> JobRequirements {
        if self.times.fetch_add(1, std::sync::atomic::Ordering::SeqCst) > 0 {
            let _ = self.asked.send(());
            let _ = self.gate.lock().recv();
        }
        JobRequirements::none()
    }

    fn timeout(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

// case RT-4
#[test]
fn what_does_not_end_by_itself_is_ended_though_no_thread_can_be_started() {
    let scene = scene(64);
    let (asked, asks) = mpsc::channel();
    let (stuck, open) = AskHangs::new(asked);
    let stuck = scene.dispatcher.submit(&scene.workflow, stuck).unwrap();
    asks.recv().unwrap();
    scene.refuse_spawns();
    assert!(scene.answer(&stuck).unwrap_err().is_timed_out());
    drop(open);
}

// case CS-5
#[test]
fn a_shutdown_that_a_job_asks_for_ends_everything_though_no_thread_can_be_started() {
    let scene = scene(64);
    let busy = job_fn(JobRequirements::none, |_, context| {
        context.sleep(Duration::from_secs(86_400))
    });
    let busy = scene.dispatcher.submit(&scene.workflow, busy).unwrap();
    let (go, gone) = mpsc::channel::<()>();
    let (told, tell) = mpsc::channel();
    let own = scene.dispatcher.clone();
    let ending = job_fn(JobRequirements::none, move |_, _| {
        let _ = gone.recv();
        let _ = told.send(own.shutdown(Duration::from_secs(1)));
        Ok(())
    });
    let ending = scene.dispatcher.submit(&scene.workflow, ending).unwrap();
    while scene.dispatcher.queue_len() > 0 {
        thread::yield_now();
    }
    scene.refuse_spawns();
    go.send(()).unwrap();
    assert_eq!(tell.recv(), Ok(Err(ShutdownError::FromInside)));
    scene.answer(&ending).unwrap();
    assert!(scene.answer(&busy).unwrap_err().is_cancelled());
}

// case TO-4
#[test]
fn a_shutdown_under_a_full_cap_delays_no_timeout() {
    // Two threads for jobs.
    let scene = scene(9);
    let (asked, asks) = mpsc::channel();
    let (stuck, open) = AskHangs::new(asked);
    let stuck = scene.dispatcher.submit(&scene.workflow, stuck).unwrap();
    asks.recv().unwrap();
    let (told, tell) = mpsc::channel();
    let (go, gone) = mpsc::channel::<()>();
    let own = scene.dispatcher.clone();
    let ending = job_fn(JobRequirements::none, move |_, _| {
        let _ = told.send(own.shutdown(Duration::from_secs(3_600)));
        let _ = gone.recv();
        Ok(())
    });
    let ending = scene.dispatcher.submit(&scene.workflow, ending).unwrap();
    assert_eq!(tell.recv(), Ok(Err(ShutdownError::FromInside)));
    // The two phases, and not a moment of the shutdown's hour more.
    let timer = scene.dispatcher.inner().timer().cell();
    for _ in 0..2 {
        scene.clock.advance(TIMEOUT);
        timer.wait_quiet(&scene.clock);
    }
    let begun = Instant::now();
    while !stuck.is_settled() {
        assert!(begun.elapsed() < Duration::from_secs(30), "it never comes");
        thread::yield_now();
    }
    assert!(stuck.get().unwrap_err().is_timed_out());
    drop((open, go));
    scene.answer(&ending).unwrap();
}
