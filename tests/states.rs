//! How a job's outcome is decided, once, whoever comes together.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

use nucleo_runtime::events::{Event, EventFilter, EventKind, LifecycleEvent};
use nucleo_runtime::{
    JobDispatcher, JobError, JobHandle, JobRequirements, JobState, ManualClock, Workflow, job_fn,
};

fn started() -> (JobDispatcher, Workflow) {
    let dispatcher = JobDispatcher::builder().build().unwrap();
    dispatcher.start().unwrap();
    (dispatcher, Workflow::new("user", "test").unwrap())
}

/// A job that says when it runs and then waits for its answer, looking at nothing.
fn deaf<T: Send + Sync + 'static>(
    dispatcher: &JobDispatcher,
    workflow: &Workflow,
) -> (JobHandle<T>, mpsc::Sender<Result<T, JobError>>) {
    let (answer, waiting) = mpsc::channel();
    let (running, ran) = mpsc::channel();
    let handle = dispatcher
        .submit(
            workflow,
            job_fn(JobRequirements::none, move |_, _| {
                running.send(()).unwrap();
                waiting.recv().unwrap()
            }),
        )
        .unwrap();
    ran.recv().unwrap();
    (handle, answer)
}

// case ST-01
#[test]
fn a_cancel_that_races_a_completion_has_one_winner_and_no_error() {
    let (dispatcher, workflow) = started();
    let (mut completed, mut cancelled) = (0, 0);
    for _ in 0..500 {
        let (handle, answer) = deaf::<u32>(&dispatcher, &workflow);
        let start = Barrier::new(2);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                start.wait();
                answer.send(Ok(7)).unwrap();
            });
            start.wait();
            handle.cancel("race");
        });
        let result = handle.get();
        let snapshot = handle.snapshot();
        assert!(snapshot.ended_at().is_some());
        match snapshot.state() {
            JobState::Completed => {
                completed += 1;
                assert_eq!(*result.unwrap(), 7);
            }
            JobState::Cancelled => {
                cancelled += 1;
                assert!(result.unwrap_err().is_cancelled());
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(completed + cancelled, 500);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-02
// case ST-16
#[test]
fn a_late_cancel_changes_nothing_and_finds_nothing() {
    let (dispatcher, workflow) = started();
    let (handle, answer) = deaf::<u32>(&dispatcher, &workflow);
    answer.send(Ok(1)).unwrap();
    assert_eq!(*handle.get().unwrap(), 1);
    assert!(!handle.cancel("late"));
    assert!(!dispatcher.cancel(handle.job_id(), "late"));
    assert_eq!(handle.snapshot().state(), JobState::Completed);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-05
// case ST-07
#[test]
fn a_job_that_never_looks_ends_cancelled_though_it_answers() {
    let (dispatcher, workflow) = started();
    let (handle, answer) = deaf::<u32>(&dispatcher, &workflow);
    assert!(handle.cancel("not needed"));
    assert_eq!(handle.snapshot().state(), JobState::Cancelled);
    assert!(handle.try_get().unwrap().is_none(), "it still runs");
    answer.send(Ok(1)).unwrap();
    let error = handle.get().unwrap_err();
    assert!(error.is_cancelled() && !error.is_correctable());
    assert!(error.to_string().contains("not needed"), "{error}");
    assert_eq!(handle.snapshot().state(), JobState::Cancelled);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-06
#[test]
fn a_job_that_fails_after_its_cancellation_ends_cancelled() {
    let (dispatcher, workflow) = started();
    let (handle, answer) = deaf::<u32>(&dispatcher, &workflow);
    assert!(dispatcher.cancel(handle.job_id(), "not needed"));
    answer
        .send(Err(JobError::external("x", "broke off")))
        .unwrap();
    let error = handle.get().unwrap_err();
    assert!(error.is_cancelled(), "{error:?}");
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("broke off"));
    assert_eq!(handle.snapshot().state(), JobState::Cancelled);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-09
// case ST-11
#[test]
fn a_job_that_looks_stops_with_the_reason() {
    let (dispatcher, workflow) = started();
    let (running, ran) = mpsc::channel();
    let handle: JobHandle<()> = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, context| {
                running.send(()).unwrap();
                loop {
                    context.check_cancellation()?;
                    context.sleep(Duration::from_secs(3_600))?;
                }
            }),
        )
        .unwrap();
    ran.recv().unwrap();
    handle.cancel("the user left");
    let error = handle.get().unwrap_err();
    assert!(error.is_cancelled() && !error.is_correctable());
    assert!(error.llm_message().contains("the user left"));
    assert_eq!(handle.snapshot().state(), JobState::Cancelled);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-17
#[test]
fn a_workflow_is_cancelled_whole_and_an_unknown_one_is_nothing() {
    let (dispatcher, workflow) = started();
    let (handle, answer) = deaf::<u32>(&dispatcher, &workflow);
    let other = Workflow::new("user", "other").unwrap();
    let (spared, spared_answer) = deaf::<u32>(&dispatcher, &other);
    assert_eq!(dispatcher.cancel_workflow("no-such-workflow", "x"), 0);
    assert_eq!(dispatcher.cancel_workflow(workflow.id(), "enough"), 1);
    answer.send(Ok(1)).unwrap();
    spared_answer.send(Ok(2)).unwrap();
    assert!(handle.get().unwrap_err().is_cancelled());
    assert_eq!(*spared.get().unwrap(), 2);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-19
#[test]
fn each_way_to_remove_a_queued_job_says_which_it_was() {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock))
        .max_threads(9)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let (sender, told) = mpsc::channel();
    let subscription = dispatcher.subscribe(
        EventFilter::all().kind(EventKind::JobCancelled),
        Arc::new(move |event: &Arc<Event>| {
            if let Event::Lifecycle(LifecycleEvent::Cancelled(event)) = &**event {
                let _ = sender.send(event.message.clone());
            }
        }),
    );
    // One thread is left for jobs, and this one takes it.
    let _subscription = subscription.unwrap();
    let (blocker, answer) = deaf::<u32>(&dispatcher, &workflow);
    let other = Workflow::new("user", "other").unwrap();
    let queued = |workflow| {
        dispatcher
            .submit(workflow, job_fn(JobRequirements::none, |_, _| Ok(())))
            .unwrap()
    };
    let (by_id, by_workflow, by_shutdown) = (queued(&workflow), queued(&other), queued(&workflow));
    assert!(by_id.cancel("why"));
    assert_eq!(told.recv().unwrap(), "Cancelled while queued: why");
    assert_eq!(dispatcher.cancel_workflow(other.id(), "all of it"), 1);
    assert_eq!(told.recv().unwrap(), "Workflow cancelled: all of it");
    std::thread::scope(|scope| {
        scope.spawn(|| dispatcher.shutdown(Duration::from_secs(5)).unwrap());
        assert_eq!(told.recv().unwrap(), "Cancelled by shutdown");
        answer.send(Ok(1)).unwrap();
    });
    assert_eq!(*blocker.get().unwrap(), 1);
    for handle in [by_id, by_workflow, by_shutdown] {
        assert!(handle.get().unwrap_err().is_cancelled());
    }
}

// case ST-20
#[test]
fn a_cancelled_attempt_is_not_run_again() {
    let (dispatcher, workflow) = started();
    let again = Arc::new(AtomicBool::new(false));
    let ran_again = Arc::clone(&again);
    let (running, ran) = mpsc::channel();
    let (go_on, waiting) = mpsc::channel::<()>();
    let handle: JobHandle<()> = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, _| {
                if running.send(()).is_err() {
                    ran_again.store(true, Ordering::SeqCst);
                }
                waiting.recv().unwrap();
                Err(nucleo_runtime::RetrySignal::transient("p", "502").into())
            }),
        )
        .unwrap();
    ran.recv().unwrap();
    drop(ran);
    handle.cancel("stop");
    go_on.send(()).unwrap();
    assert!(handle.get().unwrap_err().is_cancelled());
    assert!(!again.load(Ordering::SeqCst));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case F22
#[test]
fn jobs_that_ignore_a_cancellation_are_listed_until_they_end() {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let deaf: Vec<_> = (0..100)
        .map(|_| deaf::<()>(&dispatcher, &workflow))
        .collect();
    assert_eq!(dispatcher.cancel_workflow(workflow.id(), "stop"), 100);
    assert!(dispatcher.unresponsive().is_empty(), "they have a grace");
    clock.advance(Duration::from_secs(30));
    let listed = dispatcher.unresponsive();
    assert_eq!(listed.len(), 100);
    assert!(
        listed
            .iter()
            .all(|left| left.job.state() == JobState::Cancelled)
    );
    for (handle, answer) in deaf {
        answer.send(Ok(())).unwrap();
        assert!(handle.get().unwrap_err().is_cancelled());
    }
    assert!(dispatcher.unresponsive().is_empty());
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case ST-04
#[test]
fn a_terminal_state_is_final() {
    let (dispatcher, workflow) = started();
    let (handle, answer) = deaf::<u32>(&dispatcher, &workflow);
    handle.cancel("first");
    let cancelled = handle.snapshot();
    // Whatever comes later, from whichever side, leaves it as it is.
    handle.cancel("second");
    answer
        .send(Err(JobError::system("x", "failed too")))
        .unwrap();
    assert!(handle.get().is_err());
    let ended = handle.snapshot();
    assert_eq!(ended.state(), JobState::Cancelled);
    assert_eq!(ended.ended_at(), cancelled.ended_at());
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case DEP-05
#[test]
fn a_job_cancelled_while_it_waits_for_its_dependency_ends_cancelled_whatever_becomes_of_that() {
    let (dispatcher, workflow) = started();
    let (producer, answer) = deaf::<u32>(&dispatcher, &workflow);
    let ran = Arc::new(AtomicBool::new(false));
    let running = Arc::clone(&ran);
    let dependent = dispatcher
        .submit_with(
            &workflow,
            job_fn(
                || JobRequirements::none().run_at_once(),
                move |_, _| {
                    running.store(true, Ordering::SeqCst);
                    Ok(())
                },
            ),
        )
        .after(&producer)
        .submit()
        .unwrap();
    assert!(dependent.cancel("not needed"));
    assert!(dependent.get().unwrap_err().is_cancelled());
    answer.send(Err(JobError::external("x", "down"))).unwrap();
    assert!(producer.get().is_err());
    assert!(dependent.get().unwrap_err().is_cancelled());
    assert_eq!(dependent.snapshot().state(), JobState::Cancelled);
    assert!(!ran.load(Ordering::SeqCst));
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
}

// case F24
#[test]
fn a_timed_out_attempt_is_never_run_again() {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "test").unwrap();
    let (running, ran) = mpsc::channel();
    let handle: JobHandle<()> = dispatcher
        .submit(
            &workflow,
            job_fn(JobRequirements::none, move |_, context| {
                running.send(()).unwrap();
                let told = context.sleep(Duration::from_secs(3_600)).unwrap_err();
                assert!(told.is_timed_out());
                Err(nucleo_runtime::RetrySignal::transient("p", "broke off").into())
            })
            .timeout(Some(Duration::from_secs(60))),
        )
        .unwrap();
    ran.recv().unwrap();
    clock.advance(Duration::from_secs(60));
    assert!(handle.get().unwrap_err().is_timed_out());
    assert_eq!(handle.snapshot().state(), JobState::TimedOut);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert!(ran.try_recv().is_err(), "it ran once");
}

// case ST-21
#[test]
fn a_shutdown_refuses_waiters_and_queued_jobs_before_it_waits_for_running_ones() {
    let (dispatcher, workflow) = started();
    let gate = Arc::new(nucleo_runtime::admission::CountingGate::new("gate", 1).unwrap());
    let (answer, waiting) = mpsc::channel::<()>();
    let (running, ran) = mpsc::channel();
    let holding = Arc::clone(&gate);
    let holder = dispatcher
        .submit(
            &workflow,
            job_fn(
                move || JobRequirements::none().permit(&holding),
                move |_, _| {
                    running.send(()).unwrap();
                    waiting.recv().unwrap();
                    Ok(())
                },
            ),
        )
        .unwrap();
    ran.recv().unwrap();
    let parked = dispatcher
        .submit(
            &workflow,
            job_fn(move || JobRequirements::none().permit(&gate), |_, _| Ok(())),
        )
        .unwrap();
    while dispatcher.admission().queue_len() == 0 {
        std::thread::yield_now();
    }
    let stopped = Arc::new(AtomicBool::new(false));
    let stops = Arc::clone(&stopped);
    dispatcher.register_stoppable(Arc::new(nucleo_runtime::StopOnce::new(move || {
        stops.store(true, Ordering::SeqCst);
    })));
    std::thread::scope(|scope| {
        scope.spawn(|| dispatcher.shutdown(Duration::from_secs(60)).unwrap());
        assert!(parked.get().unwrap_err().is_cancelled());
        assert!(!holder.is_settled(), "it has its minute");
        assert!(!stopped.load(Ordering::SeqCst), "jobs come first");
        answer.send(()).unwrap();
    });
    assert!(holder.get().is_ok());
    assert!(stopped.load(Ordering::SeqCst));
}
