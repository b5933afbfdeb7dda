//! A panic, wherever it is raised, ends with what raised it (`ATT-11`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use nucleo_runtime::admission::{
    AccountCategory, AccountKey, AccountStatus, CountingGate, RateLimiter, Replenishment,
};
use nucleo_runtime::db::{Abort, DbManagedResource, DbResourceProvider};
use nucleo_runtime::events::{AppEvent, Event, EventFilter, EventKind, Observer};
use nucleo_runtime::{
    ErrorKind, Job, JobContext, JobDispatcher, JobError, JobRequirements, JobResources, JobState,
    UpstreamFailure, Workflow, job_fn, testing,
};

use crate::support::{Fault, Host, Log, Recording, held};

/// Everything is as it was before: permits, threads, jobs; and the next job runs.
fn assert_unharmed(host: &Host, permit: &Arc<CountingGate>, threads: usize, place: &str) {
    assert_eq!(permit.in_use(), 0, "{place}");
    assert_eq!(host.dispatcher.job_count(), 0, "{place}");
    let needed = Arc::clone(permit);
    let next = host.submit(job_fn(
        move || JobRequirements::none().permit(&needed),
        |_, _| Ok("alive"),
    ));
    assert_eq!(*next.get().unwrap(), "alive", "{place}");
    // A job's thread ends after its handle has settled.
    while host.dispatcher.threads().live > threads {
        thread::yield_now();
    }
    testing::quiesce(&host.dispatcher);
}

fn gate() -> Arc<CountingGate> {
    Arc::new(CountingGate::new("permit", 1).unwrap())
}

/// A job that panics in one of its methods, or as it is dropped.
struct Panics {
    at: &'static str,
    requirements_asked: AtomicUsize,
    permit: Arc<CountingGate>,
}

impl Panics {
    fn here(&self, place: &'static str) {
        assert!(self.at != place, "in {place}");
    }
}

impl Drop for Panics {
    fn drop(&mut self) {
        self.here("drop");
    }
}

impl Job for Panics {
    type Output = ();

    fn name(&self) -> Option<String> {
        self.here("name");
        None
    }

    fn timeout(&self) -> Option<Duration> {
        self.here("timeout");
        Some(Duration::from_secs(60))
    }

    fn requirements(&self) -> JobRequirements {
        match self.requirements_asked.fetch_add(1, Ordering::SeqCst) {
            0 => self.here("requirements at submit"),
            _ => self.here("requirements of the attempt"),
        }
        JobRequirements::none().permit(&self.permit)
    }

    fn pre_execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        self.here("pre_execute");
        Ok(())
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        self.here("execute");
        Ok(())
    }

    fn post_execute(&mut self, _: Result<&(), &JobError>, _: &JobContext) {
        self.here("post_execute");
    }
}

#[test]
fn a_job_that_panics_in_any_of_its_methods_harms_nobody() {
    let host = Host::new();
    let permit = gate();
    let threads = host.dispatcher.threads().live;
    for (at, fails) in [
        ("name", true),
        ("timeout", true),
        ("requirements at submit", true),
        ("requirements of the attempt", true),
        ("pre_execute", true),
        ("execute", true),
        ("post_execute", false),
        ("drop", false),
    ] {
        let handle = host.submit(Panics {
            at,
            requirements_asked: AtomicUsize::new(0),
            permit: Arc::clone(&permit),
        });
        match handle.get() {
            Ok(_) => assert!(!fails, "{at}"),
            Err(error) => {
                assert!(fails, "{at}: {error}");
                let ErrorKind::System { component, details } = error.kind() else {
                    panic!("{at}: {error:?}")
                };
                assert_eq!(component, "job");
                assert!(details.contains(&format!("in {at}")), "{details}");
                assert!(host.kinds(&handle).contains(&EventKind::JobFailed));
            }
        }
        assert_unharmed(&host, &permit, threads, at);
    }
}

/// A value that says when it is dropped, and panics on any thread but the test's own.
struct Bomb {
    safe: ThreadId,
    dropped: mpsc::Sender<()>,
}

impl Drop for Bomb {
    fn drop(&mut self) {
        let _ = self.dropped.send(());
        assert_eq!(thread::current().id(), self.safe, "a destructor");
    }
}

fn bombs() -> (impl Fn() -> Bomb + Send + Clone, mpsc::Receiver<()>) {
    let (dropped, drops) = mpsc::channel();
    let safe = thread::current().id();
    let make = move || Bomb {
        safe,
        dropped: dropped.clone(),
    };
    (make, drops)
}

#[test]
fn outputs_that_panic_as_they_are_dropped_take_no_thread_with_them() {
    // Without a recorder, which would keep the outputs of the events that it heard.
    let dispatcher = JobDispatcher::builder().max_threads(9).build().unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "test").unwrap();
    let (bomb, drops) = bombs();
    let threads = dispatcher.threads().live;
    for _ in 0..100 {
        let bomb = bomb.clone();
        let job = job_fn(JobRequirements::none, move |_, _| Ok(bomb()));
        // Detached: whoever is last drops the output.
        drop(dispatcher.submit(&workflow, job).unwrap());
    }
    assert_eq!(drops.iter().take(100).count(), 100);
    let next = job_fn(JobRequirements::none, |_, _| Ok("alive")).timeout(None);
    assert_eq!(
        *dispatcher.submit(&workflow, next).unwrap().get().unwrap(),
        "alive"
    );
    let quick =
        job_fn(JobRequirements::none, |_, _| Ok("alive")).timeout(Some(Duration::from_secs(1)));
    assert_eq!(
        *dispatcher.submit(&workflow, quick).unwrap().get().unwrap(),
        "alive"
    );
    while dispatcher.threads().live > threads {
        thread::yield_now();
    }
}

#[test]
fn an_output_that_was_cancelled_away_and_panics_as_it_is_dropped_settles_its_job() {
    let host = Host::new();
    let (bomb, drops) = bombs();
    let (starting, started) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let handle = host.submit(job_fn(JobRequirements::none, move |_, _| {
        starting.send(()).unwrap();
        released.recv().unwrap();
        Ok(bomb())
    }));
    started.recv().unwrap();
    assert!(handle.cancel("enough"));
    release.send(()).unwrap();
    let Err(error) = handle.get() else {
        panic!("it was cancelled")
    };
    assert!(error.is_cancelled());
    drops.recv().unwrap();
}

#[test]
fn callbacks_that_panic_or_panic_as_they_are_dropped_keep_nobody_from_being_told() {
    let host = Host::new();
    let permit = gate();
    let threads = host.dispatcher.threads().live;
    let (bomb, drops) = bombs();
    let needed = Arc::clone(&permit);
    let (told, ran) = mpsc::channel();
    let (starting, started) = mpsc::channel();
    let handle = host.submit(job_fn(
        move || JobRequirements::none().permit(&needed),
        move |_, context| {
            let (told, bomb) = (told.clone(), bomb());
            context.on_cancel(|| panic!("in a callback"));
            context.on_cancel(move || told.send(()).unwrap());
            context.on_timeout(move || drop(bomb));
            context.on_timeout(|| ());
            starting.send(()).unwrap();
            context.sleep(Duration::from_secs(3_600)).map(drop)
        },
    ));
    started.recv().unwrap();
    assert!(handle.cancel("enough"));
    ran.recv().unwrap();
    assert!(handle.get().unwrap_err().is_cancelled());
    // The timeout's callbacks will not run any more, and were dropped.
    drop(handle);
    drops.recv().unwrap();
    assert_unharmed(&host, &permit, threads, "callbacks");
}

#[test]
fn several_callbacks_that_panic_as_they_are_dropped_do_not_abort_the_process() {
    let host = Host::new();
    let (bomb, drops) = bombs();
    let handle = host.submit(job_fn(JobRequirements::none, move |_, context| {
        for _ in 0..2 {
            let (cancel, timeout) = (bomb(), bomb());
            context.on_cancel(move || drop(cancel));
            context.on_timeout(move || drop(timeout));
        }
        Ok(())
    }));
    handle.get().unwrap();
    // On another thread than the test's, where they panic.
    thread::spawn(move || drop(handle)).join().unwrap();
    assert_eq!(drops.iter().take(4).count(), 4);
}

#[test]
fn an_observer_that_panics_hears_the_next_event_all_the_same() {
    struct Panicking(AtomicUsize);
    impl Observer for Panicking {
        fn observe(&self, event: &Arc<Event>) {
            self.0.fetch_add(1, Ordering::SeqCst);
            panic!("about {}", event.kind());
        }
    }
    let host = Host::new();
    let observer = Arc::new(Panicking(AtomicUsize::new(0)));
    let _subscription = host
        .dispatcher
        .subscribe(EventFilter::all(), observer.clone())
        .unwrap();
    let threads = host.dispatcher.threads().live;
    let handle = host.submit(job_fn(JobRequirements::none, |_, _| Ok(())));
    handle.get().unwrap();
    assert_eq!(host.kinds(&handle).len(), 4);
    assert_eq!(observer.0.load(Ordering::SeqCst), 4);
    assert_unharmed(&host, &gate(), threads, "observer");
}

#[test]
fn an_event_that_panics_or_publishes_as_it_is_dropped_harms_nobody() {
    struct Loud {
        publisher: JobContext,
        dropped: mpsc::Sender<()>,
    }
    impl AppEvent for Loud {
        fn name(&self) -> &str {
            "loud"
        }
    }
    impl std::fmt::Debug for Loud {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Loud")
        }
    }
    impl Drop for Loud {
        fn drop(&mut self) {
            self.publisher.publish("an event is gone", None);
            let _ = self.dropped.send(());
            panic!("in the destructor of an event");
        }
    }
    // Nobody listens, so that it goes where it was published; somebody does, and keeps nothing.
    for listen in [false, true] {
        let dispatcher = JobDispatcher::builder().build().unwrap();
        dispatcher.start().unwrap();
        let _listening = listen.then(|| {
            let observer = Arc::new(|_: &Arc<Event>| ());
            dispatcher.subscribe(EventFilter::all(), observer).unwrap()
        });
        let workflow = Workflow::new("alice", "test").unwrap();
        let (dropped, drops) = mpsc::channel();
        let job = job_fn(JobRequirements::none, move |_, context| {
            context.publish_event(Arc::new(Loud {
                publisher: context.clone(),
                dropped: dropped.clone(),
            }));
            Ok("went on")
        });
        let handle = dispatcher.submit(&workflow, job).unwrap();
        assert_eq!(*handle.get().unwrap(), "went on");
        drops.recv().unwrap();
        testing::quiesce(&dispatcher);
    }
}

/// A limit that panics at one question.
struct PanickingLimit {
    key: AccountKey,
    at: &'static str,
}

impl PanickingLimit {
    fn here(&self, place: &'static str) {
        assert!(self.at != place, "in {place}");
    }
}

impl RateLimiter for PanickingLimit {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.here("account_for");
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        self.here("describe");
        AccountStatus::new(AccountCategory::Semaphore, 1, 0)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        self.here("fits");
        Ok(true)
    }

    fn try_take(&self, _: &[()], _: &[()], _: Instant) -> Result<bool, JobError> {
        self.here("try_take");
        Ok(true)
    }

    fn give(&self, _: &[()], _: Instant) {}

    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }

    fn on_success(&self, _: Instant) {
        self.here("on_success");
    }

    fn on_rate_limit_error(&self, _: &UpstreamFailure, _: Instant) {
        self.here("on_rate_limit_error");
    }

    fn requires_http_connection(&self) -> bool {
        self.here("requires_http_connection");
        false
    }
}

#[test]
fn a_limit_that_panics_fails_its_job_at_most() {
    for (at, fails) in [
        ("account_for", true),
        ("requires_http_connection", true),
        ("describe", false),
        ("fits", true),
        ("try_take", true),
        ("on_success", false),
        ("on_rate_limit_error", true),
    ] {
        let host = Host::new();
        let permit = gate();
        let threads = host.dispatcher.threads().live;
        let limit = Arc::new(PanickingLimit {
            key: AccountKey::new("limit"),
            at,
        });
        let needed = Arc::clone(&permit);
        let submit = move || {
            job_fn(
                move || JobRequirements::none().permit(&needed).limiter(&limit, ()),
                move |_, _| match at {
                    "on_rate_limit_error" => Err(JobError::external("service", "broken")),
                    _ => Ok(()),
                },
            )
        };
        let handle = host.submit(submit());
        let ended = handle.get();
        assert_eq!(ended.is_err(), fails, "{at}: {ended:?}");
        if at == "on_rate_limit_error" {
            assert!(matches!(
                ended.unwrap_err().kind(),
                ErrorKind::ExternalService { .. }
            ));
        }
        assert_eq!(
            host.kinds(&handle).last(),
            Some(&EventKind::WorkflowComplete),
            "{at}"
        );
        assert_unharmed(&host, &permit, threads, at);
    }
}

#[test]
fn a_limit_that_panics_in_a_delayed_submission_takes_no_queue_with_it() {
    let host = Host::new();
    let limit = Arc::new(PanickingLimit {
        key: AccountKey::new("limit"),
        at: "account_for",
    });
    let job = job_fn(
        move || JobRequirements::none().limiter(&limit, ()),
        |_, _| Ok(()),
    );
    let delayed = host
        .dispatcher
        .submit_delayed(Duration::from_secs(1), &host.workflow, job)
        .unwrap();
    host.clock.advance(Duration::from_secs(1));
    let handle = delayed.get().unwrap();
    handle.get().unwrap_err();
    let next = job_fn(JobRequirements::none, |_, _| Ok("alive"));
    let next = host
        .dispatcher
        .submit_delayed(Duration::from_secs(1), &host.workflow, next)
        .unwrap();
    testing::quiesce(&host.dispatcher);
    host.clock.advance(Duration::from_secs(1));
    assert_eq!(*next.get().unwrap().get().unwrap(), "alive");
}

#[test]
fn a_provider_that_panics_fails_its_job_at_most() {
    for (at, fails) in [
        ("acquire", true),
        ("begin", true),
        ("commit", true),
        ("await", true),
        ("rollback", true),
        ("close", false),
    ] {
        let host = Host::new();
        let permit = gate();
        let threads = host.dispatcher.threads().live;
        let log = Log::default();
        let broken = Arc::new(Recording::new("db", &log).with(at, Fault::Panic));
        let connections = broken.admission();
        let needed = Arc::clone(&permit);
        let handle = host.submit(job_fn(
            move || {
                JobRequirements::none()
                    .permit(&needed)
                    .provider(&broken)
                    .transaction()
            },
            move |_, _| match at {
                "rollback" => Err(JobError::correctable("work failed")),
                _ => Ok(()),
            },
        ));
        let ended = handle.get();
        assert_eq!(ended.is_err(), fails, "{at}: {ended:?}");
        assert_eq!(connections.in_use(), 0, "{at}");
        if at != "acquire" {
            assert_eq!(log.lines().last().unwrap(), "db.close", "{at}");
        }
        assert_eq!(
            handle.snapshot().state(),
            if fails {
                JobState::Failed
            } else {
                JobState::Completed
            }
        );
        assert_unharmed(&host, &permit, threads, at);
    }
}

/// A database whose handles panic as they are dropped.
struct Fragile {
    gate: Arc<CountingGate>,
    bomb: Box<dyn Fn() -> Bomb + Send + Sync>,
}

#[derive(Clone)]
struct FragileHandle(#[expect(dead_code, reason = "kept to be dropped")] Arc<Bomb>);

impl DbManagedResource for FragileHandle {
    fn provider(&self) -> &str {
        "fragile"
    }
}

impl DbResourceProvider for Fragile {
    type Handle = FragileHandle;
    fn name(&self) -> &str {
        "fragile"
    }
    fn admission(&self) -> Arc<CountingGate> {
        Arc::clone(&self.gate)
    }
    fn acquire(&self, _: bool, _: Option<Instant>) -> Result<FragileHandle, JobError> {
        Ok(FragileHandle(Arc::new((self.bomb)())))
    }
    fn begin(&self, _: &FragileHandle) -> Result<(), JobError> {
        Ok(())
    }
    fn commit(&self, _: &FragileHandle) -> Result<(), JobError> {
        Ok(())
    }
    fn await_visible(&self, _: &FragileHandle) -> Result<(), JobError> {
        Ok(())
    }
    fn rollback(&self, _: &FragileHandle) -> Result<(), JobError> {
        Ok(())
    }
    fn close(&self, _: &FragileHandle) -> Result<(), JobError> {
        Ok(())
    }
    fn abort(&self, _: &FragileHandle, _: Instant) -> Result<Abort, JobError> {
        Ok(Abort::Severed)
    }
}

#[test]
fn a_database_handle_that_panics_as_it_is_dropped_takes_no_job_with_it() {
    let host = Host::new();
    let permit = gate();
    let threads = host.dispatcher.threads().live;
    let (bomb, drops) = bombs();
    let bomb = std::sync::Mutex::new(bomb);
    let fragile = Arc::new(Fragile {
        gate: Arc::new(CountingGate::database("fragile", 1).unwrap()),
        bomb: Box::new(move || (bomb.lock().unwrap())()),
    });
    let needed = (Arc::clone(&permit), Arc::clone(&fragile));
    let handle = host.submit(job_fn(
        move || {
            JobRequirements::none()
                .permit(&needed.0)
                .provider(&needed.1)
                .transaction()
        },
        |_, _| Ok("committed"),
    ));
    assert_eq!(*handle.get().unwrap(), "committed");
    drops.recv().unwrap();
    assert_eq!(fragile.gate.in_use(), 0);
    assert_unharmed(&host, &permit, threads, "a handle's drop");
}

#[test]
fn a_queued_job_that_panics_as_it_is_cancelled_away_settles() {
    let host = Host::new();
    let (first, hold) = held(JobRequirements::none);
    let first = host.submit(first);
    let handle = host
        .dispatcher
        .submit_with(
            &host.workflow,
            Panics {
                at: "drop",
                requirements_asked: AtomicUsize::new(0),
                permit: gate(),
            },
        )
        .after(&first)
        .submit()
        .unwrap();
    assert!(handle.cancel("enough"));
    assert!(handle.get().unwrap_err().is_cancelled());
    hold.release();
    first.get().unwrap();
}

/// An error of a user's that cannot say what it is, or where it comes from.
#[derive(Debug)]
struct Mute {
    cause: Option<Box<Mute>>,
    asked_for_its_cause: bool,
}

impl std::fmt::Display for Mute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        assert!(self.cause.is_some(), "in a text");
        f.write_str("mute")
    }
}

impl std::error::Error for Mute {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        assert!(!self.asked_for_its_cause, "in a cause");
        self.cause.as_deref().map(|cause| cause as _)
    }
}

#[test]
fn an_error_that_panics_when_it_is_asked_keeps_no_cancelled_job_from_ending() {
    let host = Host::new();
    for (depth, asked_for_its_cause) in [(1, false), (62, false), (3, true)] {
        let (start, started) = mpsc::channel();
        let (go, gone) = mpsc::channel::<()>();
        let job = host.submit(job_fn(JobRequirements::none, move |_, _| {
            start.send(()).unwrap();
            gone.recv().unwrap();
            let innermost = Mute {
                cause: None,
                asked_for_its_cause,
            };
            let deep = (0..depth).fold(innermost, |cause, _| Mute {
                cause: Some(Box::new(cause)),
                asked_for_its_cause: false,
            });
            Err::<(), _>(JobError::system("x", "own").with_source(deep))
        }));
        started.recv().unwrap();
        assert!(job.cancel("enough"));
        go.send(()).unwrap();
        let error = job.get().unwrap_err();
        assert!(error.is_cancelled(), "{error}");
        // Whoever shows it gets past it as well.
        assert!(format!("{error:?}").contains("own"), "{error:?}");
        assert_eq!(job.snapshot().state(), JobState::Cancelled);
    }
    assert_eq!(host.dispatcher.job_count(), 0);
}
