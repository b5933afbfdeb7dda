//! What is a user's and hangs (a destructor, a name) holds up none of the runtime's own threads.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::{
    Clock, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, JobResources,
    ManualClock, ShutdownError, ShutdownReport, StopOnce, Stoppable, Workflow, doer_fn, job_fn,
};

#[path = "support/stuck.rs"]
mod stuck;

use stuck::Stuck;

/// How long a test waits for what must come, in the time of the machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A job that never runs, and what its destructor does.
struct OnDrop<F: FnMut() + Send + 'static>(F);

impl<F: FnMut() + Send + 'static> Job for OnDrop<F> {
    type Output = ();

    fn requirements(&self) -> JobRequirements {
        JobRequirements::none()
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

impl<F: FnMut() + Send + 'static> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn hangs(stuck: &Stuck) -> OnDrop<impl FnMut() + Send + 'static> {
    let stuck = stuck.clone();
    OnDrop(move || stuck.here())
}

fn started(threads: usize) -> (ManualClock, JobDispatcher, Workflow) {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .max_threads(threads)
        .without_memory_gate()
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    (clock, dispatcher, workflow)
}

/// What `work` answers, while time goes by.
fn in_time<T: Send + 'static>(clock: &ManualClock, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (answer, answered) = mpsc::channel();
    thread::spawn(move || answer.send(work()));
    let begun = std::time::Instant::now();
    loop {
        match answered.try_recv() {
            Ok(answer) => return answer,
            Err(_) => assert!(begun.elapsed() < PATIENCE, "it never comes"),
        }
        clock.advance(Duration::from_millis(10));
        thread::yield_now();
    }
}

fn answer<T: Send + Sync + 'static>(
    clock: &ManualClock,
    handle: &JobHandle<T>,
) -> Result<Arc<T>, JobError> {
    let handle = handle.clone();
    in_time(clock, move || handle.get())
}

fn shut_down(
    clock: &ManualClock,
    dispatcher: &JobDispatcher,
) -> Result<ShutdownReport, ShutdownError> {
    let dispatcher = dispatcher.clone();
    let before = clock.now();
    let timeout = Duration::from_millis(500);
    let report = in_time(clock, move || dispatcher.shutdown(timeout));
    // Time goes by faster here than threads run.
    assert!(clock.now() - before < Duration::from_secs(3_600));
    report
}

fn sleeps(context: &JobContext) -> Result<(), JobError> {
    context.sleep(Duration::from_secs(86_400))
}

// case TO-5
#[test]
fn a_destructor_that_hangs_delays_no_timeout() {
    // Two threads for jobs.
    let (clock, dispatcher, workflow) = started(9);
    let (hanging, working) = (Stuck::default(), Stuck::default());
    let at_work = working.clone();
    let late = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, _| {
                at_work.here();
                Ok(())
            })
            .timeout(Some(Duration::from_millis(200))),
        )
        .unwrap();
    working.wait_until_reached();
    let child = hangs(&hanging);
    let child = Mutex::new(Some(child));
    let parent = dispatcher
        .submit(
            &workflow,
            doer_fn(move |context| {
                let child = child.lock().unwrap().take();
                let child = child.ok_or_else(|| JobError::illegal_state("runs once"))?;
                context.submit(child)?.get().map(drop)
            }),
        )
        .unwrap();
    // The thread of the one that timed out is left behind, so nobody is left to make room for the child.
    assert!(answer(&clock, &late).unwrap_err().is_timed_out());
    let refused = answer(&clock, &parent).unwrap_err();
    assert!(refused.to_string().contains("max_threads"), "{refused}");
    hanging.wait_until_reached();
    hanging.let_go();
    working.let_go();
    shut_down(&clock, &dispatcher).unwrap();
}

// case CS-4
#[test]
fn a_shutdown_answers_every_handle_though_a_cancelled_job_does_not_let_itself_be_dropped() {
    let (clock, dispatcher, workflow) = started(64);
    let hanging = Stuck::default();
    let busy = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, |_, context| sleeps(context)),
        )
        .unwrap();
    let queued: Vec<_> = (0..8)
        .map(|_| {
            dispatcher
                .submit_with(&workflow, hangs(&hanging))
                .after(&busy)
                .submit()
                .unwrap()
        })
        .collect();
    let hour = Duration::from_secs(360_000);
    let delayed = dispatcher
        .submit_delayed(hour, &workflow, hangs(&hanging))
        .unwrap();
    shut_down(&clock, &dispatcher).unwrap();
    assert!(busy.get().unwrap_err().is_cancelled());
    for queued in queued {
        assert!(queued.get().unwrap_err().is_cancelled());
    }
    assert!(delayed.get().unwrap_err().is_cancelled());
    hanging.let_go();
}

// case CS-5
#[test]
fn a_destructor_that_shuts_down_does_not_wait_for_the_shutdown_that_drops_it() {
    for cancelled in [true, false] {
        let (clock, dispatcher, workflow) = started(64);
        let busy = dispatcher
            .submit(
                &workflow,
                job_fn(JobRequirements::none, |_, context| sleeps(context)),
            )
            .unwrap();
        let (told, tell) = mpsc::channel();
        let own = dispatcher.clone();
        let queued = dispatcher
            .submit_with(
                &workflow,
                OnDrop(move || {
                    let _ = told.send(own.shutdown(Duration::from_secs(10)));
                }),
            )
            .after(&busy)
            .submit()
            .unwrap();
        if cancelled {
            // Dropped here, on the thread of whoever cancels it; and the shutdown begins.
            assert!(queued.cancel("enough"));
        } else {
            shut_down(&clock, &dispatcher).unwrap();
        }
        assert_eq!(
            tell.recv_timeout(PATIENCE),
            Ok(Err(ShutdownError::FromInside))
        );
        assert!(answer(&clock, &busy).unwrap_err().is_cancelled());
    }
}

struct Nameless(Stuck);

impl Stoppable for Nameless {
    fn name(&self) -> String {
        self.0.here();
        "too late".to_owned()
    }

    fn stop(&self) {}
}

// case CS-4
#[test]
fn a_stoppable_that_does_not_tell_its_name_is_stuck_and_nothing_else_is() {
    let (clock, dispatcher, _) = started(64);
    let (stops, hanging) = (Arc::new(AtomicUsize::new(0)), Stuck::default());
    dispatcher.register_stoppable(Arc::new(Nameless(hanging.clone())));
    let counted = Arc::clone(&stops);
    dispatcher.register_stoppable(Arc::new(StopOnce::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    })));
    // Its time is the clock's, and begins once the name has been asked for.
    let ended = {
        let dispatcher = dispatcher.clone();
        thread::spawn(move || dispatcher.shutdown(Duration::from_secs(1)))
    };
    hanging.wait_until_reached();
    while stops.load(Ordering::SeqCst) == 0 {
        thread::yield_now();
    }
    let report = in_time(&clock, move || ended.join().unwrap()).unwrap();
    assert_eq!(
        report.stuck_stoppables,
        ["stoppable 1 in the order of registration"]
    );
    hanging.let_go();
}

// case CS-7
#[test]
fn more_stoppables_than_threads_are_all_stopped() {
    // One thread is nobody's.
    let (_, dispatcher, _) = started(8);
    let stops = Arc::new(AtomicUsize::new(0));
    for _ in 0..50 {
        let counted = Arc::clone(&stops);
        dispatcher.register_stoppable(Arc::new(StopOnce::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        })));
    }
    // No time goes by: whoever waited for the end of the budget would wait for ever.
    let (ended, end) = mpsc::channel();
    let own = dispatcher.clone();
    thread::spawn(move || ended.send(own.shutdown(Duration::from_secs(1))));
    let report = end.recv_timeout(PATIENCE).unwrap().unwrap();
    assert_eq!(report.stuck_stoppables, Vec::<String>::new());
    assert_eq!(stops.load(Ordering::SeqCst), 50);
}

// case DOOR-8
#[test]
fn a_submission_that_was_asked_too_long_is_cancelled_though_it_waits_for_another_dispatcher() {
    struct AskedLong(Stuck);

    impl Job for AskedLong {
        type Output = ();

        fn requirements(&self) -> JobRequirements {
            self.0.here();
            JobRequirements::none()
        }

        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            Ok(())
        }
    }

    let (clock, other, workflow) = started(64);
    let (ours, dispatcher, own) = started(64);
    let long = other
        .submit(
            &workflow,
            job_fn(JobRequirements::none, |_, context| sleeps(context)),
        )
        .unwrap();
    let asked = Stuck::default();
    let submitting = {
        let (asked, long, dispatcher) = (asked.clone(), long.clone(), dispatcher.clone());
        thread::spawn(move || {
            dispatcher
                .submit_with(&own, AskedLong(asked))
                .after(&long)
                .submit()
        })
    };
    asked.wait_until_reached();
    shut_down(&ours, &dispatcher).unwrap();
    asked.let_go();
    let late = submitting.join().unwrap().unwrap();
    assert!(answer(&ours, &late).unwrap_err().is_cancelled());
    assert_eq!(dispatcher.job_count(), 0);
    shut_down(&clock, &other).unwrap();
    assert!(long.get().unwrap_err().is_cancelled());
}

// case RT-5
#[test]
fn two_dispatchers_that_use_up_each_others_caps_do_not_hang() {
    for _ in 0..20 {
        // One thread for jobs each.
        let (first_clock, first, first_workflow) = started(8);
        let (_, second, second_workflow) = started(8);
        let (both, there) = (Stuck::default(), Arc::new(AtomicUsize::new(0)));
        let nest =
            |on: &JobDispatcher, workflow: &Workflow, other: &JobDispatcher, its: &Workflow| {
                let (other, its) = (other.clone(), its.clone());
                let (both, there) = (both.clone(), Arc::clone(&there));
                on.submit(
                    workflow,
                    doer_fn(move |_| {
                        there.fetch_add(1, Ordering::SeqCst);
                        both.here();
                        let leaf = job_fn(JobRequirements::none, |_, _| Ok(()));
                        other.submit(&its, leaf)?.get().map(drop)
                    }),
                )
                .unwrap()
            };
        let a = nest(&first, &first_workflow, &second, &second_workflow);
        let b = nest(&second, &second_workflow, &first, &first_workflow);
        while there.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        both.let_go();
        let refused = [answer(&first_clock, &a), answer(&first_clock, &b)]
            .into_iter()
            .filter_map(Result::err)
            .collect::<Vec<_>>();
        assert!(!refused.is_empty());
        for refusal in refused {
            assert!(refusal.to_string().contains("max_threads"), "{refusal}");
        }
        first.shutdown(Duration::from_secs(1)).unwrap();
        second.shutdown(Duration::from_secs(1)).unwrap();
    }
}
