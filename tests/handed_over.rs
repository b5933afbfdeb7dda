//! What a job hands to the runtime runs for that job, whatever thread it runs on.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::events::{AppEvent, Event, EventFilter, EventKind, Observer};
use nucleo_runtime::guard::{JobInput, Scope, TenantScope};
use nucleo_runtime::{
    CancellationToken, Doer, ErrorKind, Job, JobContext, JobDispatcher, JobError, JobRequirements,
    JobResources, ManualClock, OrchestratorContext, StopOnce, Stoppable, Workflow, job_fn,
};

struct Scene {
    dispatcher: JobDispatcher,
    workflow: Workflow,
    clock: Arc<ManualClock>,
}

impl Scene {
    fn new() -> Self {
        let clock = Arc::new(ManualClock::new());
        let dispatcher = JobDispatcher::builder()
            .clock(clock.clone())
            .build()
            .unwrap();
        dispatcher.start().unwrap();
        Self {
            dispatcher,
            workflow: Workflow::new("alice", "test").unwrap(),
            clock,
        }
    }

    /// Runs an orchestrator that is bound to tenant `t1`, and answers what it does.
    fn flow<T: Send + Sync + 'static>(
        &self,
        work: impl FnMut(&OrchestratorContext) -> Result<T, JobError> + Send + 'static,
    ) -> Arc<T> {
        let flow = Flow {
            work: Box::new(work),
        };
        self.dispatcher
            .submit(&self.workflow, flow)
            .unwrap()
            .get()
            .unwrap()
    }

    fn probe(&self) -> Probe {
        Probe {
            dispatcher: self.dispatcher.clone(),
            workflow: self.workflow.clone(),
        }
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.dispatcher.shutdown(Duration::from_secs(5));
    }
}

type Work<T> = Box<dyn FnMut(&OrchestratorContext) -> Result<T, JobError> + Send>;

struct Flow<T> {
    work: Work<T>,
}

impl<T: Send + Sync + 'static> Doer for Flow<T> {
    type Output = T;

    fn scope(&self) -> Option<Arc<dyn Scope>> {
        TenantScope::claim("t1")
    }

    fn execute(&mut self, context: &OrchestratorContext) -> Result<T, JobError> {
        (self.work)(context)
    }
}

struct Names(&'static str);

impl JobInput for Names {
    fn claim(&self) -> Option<Arc<dyn Scope>> {
        TenantScope::claim(self.0)
    }
}

/// A leaf that names a tenant.
struct Tool(&'static str);

impl Job for Tool {
    type Output = ();

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::new(Names(self.0)))
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

/// What captured code can do: submit a root of its own.
#[derive(Clone)]
struct Probe {
    dispatcher: JobDispatcher,
    workflow: Workflow,
}

impl Probe {
    /// What became of roots that name tenants `t1` and `t9`.
    fn submit(&self) -> [Verdict; 2] {
        ["t1", "t9"].map(|tenant| {
            let handle = self.dispatcher.submit(&self.workflow, Tool(tenant));
            let refusal = handle.unwrap().try_get();
            match refusal {
                Ok(_) => Verdict::Taken,
                Err(error) if error.to_string().contains("Only orchestrators") => Verdict::Leaf,
                Err(error) if error.to_string().contains("bound to") => Verdict::OutOfScope,
                Err(error) => panic!("{error:?}"),
            }
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Verdict {
    Taken,
    Leaf,
    OutOfScope,
}

/// Of the application, of a leaf, and of a flow that is bound to `t1`.
const FREE: [Verdict; 2] = [Verdict::Taken, Verdict::Taken];
const LEAF: [Verdict; 2] = [Verdict::Leaf, Verdict::Leaf];
const BOUND: [Verdict; 2] = [Verdict::Taken, Verdict::OutOfScope];

/// Submits once, at the first event.
struct Submitting {
    probe: Probe,
    verdicts: Mutex<Option<mpsc::Sender<[Verdict; 2]>>>,
}

impl Observer for Submitting {
    fn observe(&self, _: &Arc<Event>) {
        if let Some(verdicts) = self.verdicts.lock().unwrap().take() {
            verdicts.send(self.probe.submit()).unwrap();
        }
    }
}

fn subscribe(probe: &Probe) -> mpsc::Receiver<[Verdict; 2]> {
    let (verdicts, heard) = mpsc::channel();
    let observer = Arc::new(Submitting {
        probe: probe.clone(),
        verdicts: Mutex::new(Some(verdicts)),
    });
    let filter = EventFilter::all().kind(EventKind::Notification);
    probe
        .dispatcher
        .subscribe(filter, observer)
        .unwrap()
        .detach();
    heard
}

fn notify(scene: &Scene) {
    let telling = job_fn(JobRequirements::none, |_, context| {
        let severity = nucleo_runtime::events::Severity::Info;
        context.publish_user_notification(severity, "now", "submit");
        Ok(())
    });
    scene
        .dispatcher
        .submit(&scene.workflow, telling)
        .unwrap()
        .get()
        .unwrap();
}

#[test]
fn an_observer_submits_for_whoever_subscribed_it() {
    let scene = Scene::new();
    let of_the_application = subscribe(&scene.probe());
    let probe = scene.probe();
    let of_a_flow = scene.flow(move |_| Ok(Mutex::new(subscribe(&probe))));
    let probe = scene.probe();
    let leaf = job_fn(JobRequirements::none, move |_, _| {
        Ok(Mutex::new(subscribe(&probe)))
    });
    let of_a_leaf = scene.dispatcher.submit(&scene.workflow, leaf).unwrap();
    let of_a_leaf = of_a_leaf.get().unwrap();
    notify(&scene);
    assert_eq!(of_the_application.recv().unwrap(), FREE);
    assert_eq!(of_a_flow.lock().unwrap().recv().unwrap(), BOUND);
    assert_eq!(of_a_leaf.lock().unwrap().recv().unwrap(), LEAF);
}

#[test]
fn an_observer_of_a_handle_submits_for_whoever_registered_it() {
    let scene = Scene::new();
    let probe = scene.probe();
    let heard = scene.flow(move |context| {
        let (verdicts, heard) = mpsc::channel();
        let (release, held) = mpsc::channel::<()>();
        let child = context.submit(job_fn(JobRequirements::none, move |_, _| {
            let _ = held.recv();
            Ok(())
        }))?;
        let registered = child.register_workflow_observer(Arc::new(Submitting {
            probe: probe.clone(),
            verdicts: Mutex::new(Some(verdicts)),
        }));
        registered.unwrap();
        context.publish("told", None);
        let heard = heard.recv().unwrap();
        drop(release);
        child.get()?;
        Ok(heard)
    });
    assert_eq!(*heard, BOUND);
}

/// Has a job register a callback, and fires it from a thread outside of any job.
fn fired(scene: &Scene, orchestrator: bool, by_timeout: bool) -> [Verdict; 2] {
    let (verdicts, heard) = mpsc::channel();
    let (running, runs) = mpsc::channel();
    let probe = scene.probe();
    let work = move |context: &JobContext| {
        let (probe, verdicts) = (probe.clone(), verdicts.clone());
        let callback = move || verdicts.send(probe.submit()).unwrap();
        if by_timeout {
            context.on_timeout(callback);
        } else {
            context.on_cancel(callback);
        }
        running.send(()).unwrap();
        context.sleep(Duration::from_secs(3_600))
    };
    let job_id = if orchestrator {
        let flow = Flow {
            work: Box::new(move |context: &OrchestratorContext| work(context)),
        };
        let handle = scene.dispatcher.submit(&scene.workflow, flow).unwrap();
        handle.job_id().to_owned()
    } else {
        let leaf = job_fn(JobRequirements::none, move |_, context| work(context))
            .timeout(Some(Duration::from_secs(2)));
        let handle = scene.dispatcher.submit(&scene.workflow, leaf).unwrap();
        handle.job_id().to_owned()
    };
    runs.recv().unwrap();
    if by_timeout {
        scene.clock.advance(Duration::from_secs(2));
    } else {
        assert!(scene.dispatcher.cancel(&job_id, "enough"));
    }
    heard.recv().unwrap()
}

#[test]
fn a_callback_submits_for_whoever_registered_it() {
    let scene = Scene::new();
    assert_eq!(fired(&scene, false, false), LEAF);
    assert_eq!(fired(&scene, false, true), LEAF);
    assert_eq!(fired(&scene, true, false), BOUND);
}

#[test]
fn a_tokens_callback_submits_for_whoever_registered_it() {
    let scene = Scene::new();
    let token = CancellationToken::new();
    let (verdicts, heard) = mpsc::channel();
    let (probe, inside, sent) = (scene.probe(), token.clone(), verdicts.clone());
    scene.flow(move |_| {
        let (probe, sent) = (probe.clone(), sent.clone());
        inside.on_cancellation(move || sent.send(probe.submit()).unwrap());
        Ok(())
    });
    let probe = scene.probe();
    token.on_cancellation(move || verdicts.send(probe.submit()).unwrap());
    token.cancel("now");
    assert_eq!(
        [heard.recv().unwrap(), heard.recv().unwrap()],
        [BOUND, FREE]
    );
}

/// Says what it can submit when it is dropped.
struct Dropped {
    probe: Probe,
    verdicts: mpsc::Sender<[Verdict; 2]>,
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.verdicts.send(self.probe.submit()).unwrap();
    }
}

struct Guarded {
    kept: Option<Dropped>,
    names: &'static str,
}

impl Job for Guarded {
    type Output = ();

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        Some(Arc::new(Names(self.names)))
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        drop(self.kept.take());
        Ok(())
    }
}

#[test]
fn a_delayed_job_that_is_refused_is_dropped_by_whoever_asked_for_it() {
    let scene = Scene::new();
    let (verdicts, heard) = mpsc::channel();
    let (probe, verdicts) = (scene.probe(), verdicts);
    let refused = scene.flow(move |_| {
        let job = Guarded {
            kept: Some(Dropped {
                probe: probe.clone(),
                verdicts: verdicts.clone(),
            }),
            names: "t9",
        };
        let delay = Duration::from_secs(60);
        Ok(probe
            .dispatcher
            .submit_delayed(delay, &probe.workflow, job)?)
    });
    assert_eq!(heard.recv().unwrap(), BOUND);
    assert!(refused.try_get().unwrap().is_none(), "told when it is due");
    scene.clock.advance(Duration::from_secs(60));
    let refusal = refused.get().unwrap().get().unwrap_err();
    assert!(refusal.to_string().contains("tenantId=t9"), "{refusal}");
}

#[test]
fn a_job_that_never_runs_is_dropped_for_itself() {
    let scene = Scene::new();
    let (release, held) = mpsc::channel::<()>();
    let blocker = job_fn(JobRequirements::none, move |_, _| {
        let _ = held.recv();
        Ok(())
    });
    let blocker = scene.dispatcher.submit(&scene.workflow, blocker).unwrap();
    let (verdicts, heard) = mpsc::channel();
    let waiting = Guarded {
        kept: Some(Dropped {
            probe: scene.probe(),
            verdicts,
        }),
        names: "t1",
    };
    let waiting = scene
        .dispatcher
        .submit_with(&scene.workflow, waiting)
        .after(&blocker)
        .submit()
        .unwrap();
    assert!(waiting.cancel("not wanted"));
    assert_eq!(heard.recv().unwrap(), LEAF);
    drop(release);
    blocker.get().unwrap();
}

#[test]
fn a_submission_that_a_leaf_began_is_a_leafs_whoever_makes_it() {
    let scene = Scene::new();
    let probe = scene.probe();
    let leaf = job_fn(JobRequirements::none, move |_, _| {
        let begun = probe.dispatcher.submit_with(&probe.workflow, Tool("t1"));
        Ok(Mutex::new(Some(begun)))
    });
    let begun = scene.dispatcher.submit(&scene.workflow, leaf).unwrap();
    let begun = begun.get().unwrap();
    let begun = begun.lock().unwrap().take().unwrap();
    let made = thread::spawn(move || begun.submit().unwrap());
    let refusal = made.join().unwrap().get().unwrap_err();
    assert!(
        refusal.to_string().contains("Only orchestrators"),
        "{refusal}"
    );
}

#[test]
fn what_another_job_bound_is_no_way_around_the_rules_of_the_one_that_runs_it() {
    let scene = Scene::new();
    let probe = scene.probe();
    let permit = Arc::new(CountingGate::new("permit", 1).unwrap());
    let outcome = scene.flow(move |context| {
        let first = context.submit(Tool("t1"))?;
        first.get()?;
        let (parents, probe) = ((**context).clone(), probe.clone());
        let submitting = {
            let parents = parents.clone();
            job_fn(JobRequirements::none, move |_, _| {
                Ok(parents.bind(|| probe.submit())())
            })
        };
        let permit = Arc::clone(&permit);
        let waiting = job_fn(
            move || JobRequirements::none().permit(&permit),
            move |_, _| Ok(parents.bind(|| first.get().map(drop))()),
        );
        let submitted = *context.submit(submitting)?.get()?;
        let waited = (*context.submit(waiting)?.get()?).clone();
        Ok((submitted, waited))
    });
    let (submitted, waited) = &*outcome;
    assert_eq!(*submitted, LEAF);
    let error = waited.as_ref().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::Deadlock { .. }),
        "{error:?}"
    );
}

/// Says who it is asked by, and how often.
struct Asked {
    threads: Arc<Mutex<Vec<thread::ThreadId>>>,
    inputs: Arc<AtomicUsize>,
}

impl Job for Asked {
    type Output = ();

    fn priority(&self) -> i32 {
        self.threads.lock().unwrap().push(thread::current().id());
        0
    }

    fn requirements(&self) -> JobRequirements {
        self.threads.lock().unwrap().push(thread::current().id());
        JobRequirements::none()
    }

    fn input(&self) -> Option<Arc<dyn JobInput>> {
        self.inputs.fetch_add(1, Ordering::SeqCst);
        self.threads.lock().unwrap().push(thread::current().id());
        Some(Arc::new(Names("t1")))
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

#[test]
fn a_delayed_job_is_asked_what_it_is_by_whoever_asks_for_it() {
    let scene = Scene::new();
    let threads: Arc<Mutex<Vec<thread::ThreadId>>> = Arc::default();
    let inputs: Arc<AtomicUsize> = Arc::default();
    let asked = Asked {
        threads: Arc::clone(&threads),
        inputs: Arc::clone(&inputs),
    };
    let later = scene
        .dispatcher
        .submit_delayed(Duration::from_secs(60), &scene.workflow, asked)
        .unwrap();
    let this = thread::current().id();
    assert_eq!(*threads.lock().unwrap(), [this; 3]);
    scene.clock.advance(Duration::from_secs(60));
    later.get().unwrap().get().unwrap();
    assert_eq!(inputs.load(Ordering::SeqCst), 1);
    let threads = threads.lock().unwrap();
    assert_eq!(threads.len(), 4, "and once more for its attempt");
    assert_ne!(threads[3], this);
}

#[test]
fn a_delayed_job_that_does_not_say_what_it_is_keeps_no_other_waiting() {
    struct Silent(Mutex<mpsc::Receiver<()>>, mpsc::Sender<()>);

    impl Job for Silent {
        type Output = ();

        fn priority(&self) -> i32 {
            self.1.send(()).unwrap();
            let _ = self.0.lock().unwrap().recv();
            0
        }

        fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
            Ok(())
        }
    }

    let scene = Scene::new();
    let (release, held) = mpsc::channel::<()>();
    let (asking, asked) = mpsc::channel();
    let later = |delay, job: Silent| {
        let delay = Duration::from_secs(delay);
        scene
            .dispatcher
            .submit_delayed(delay, &scene.workflow, job)
            .map(drop)
    };
    thread::scope(|scope| {
        scope.spawn(move || later(1, Silent(Mutex::new(held), asking)).unwrap());
        asked.recv().unwrap();
        let other = scene
            .dispatcher
            .submit_delayed(Duration::from_secs(2), &scene.workflow, Tool("t1"))
            .unwrap();
        scene.clock.advance(Duration::from_secs(2));
        other.get().unwrap().get().unwrap();
        drop(release);
    });
}

/// Runs work on a leaf.
fn leaf(scene: &Scene, work: impl FnMut(&JobContext) + Send + 'static) {
    let mut work = work;
    let leaf = job_fn(JobRequirements::none, move |_, context| {
        work(context);
        Ok(())
    });
    let leaf = scene.dispatcher.submit(&scene.workflow, leaf).unwrap();
    leaf.get().unwrap();
}

/// Submits where it is dropped.
struct Left(Probe, mpsc::Sender<[Verdict; 2]>);

impl Drop for Left {
    fn drop(&mut self) {
        let _ = self.1.send(self.0.submit());
    }
}

impl Job for Left {
    type Output = ();

    fn name(&self) -> Option<String> {
        self.1.send(self.0.submit()).unwrap();
        None
    }

    fn execute(&mut self, _: &JobResources, _: &JobContext) -> Result<(), JobError> {
        Ok(())
    }
}

/// Has a leaf and then a flow make something, and answers it.
fn made_inside<T: Send + Sync + 'static>(
    scene: &Scene,
    make: impl Fn(Left) -> T + Clone + Send + 'static,
) -> [(T, mpsc::Receiver<[Verdict; 2]>, [Verdict; 2]); 2] {
    let (verdicts, of_the_leaf) = mpsc::channel();
    let (hand_out, made) = mpsc::channel();
    let (probe, maker, give) = (scene.probe(), make.clone(), hand_out.clone());
    leaf(scene, move |_| {
        let dropped = Left(probe.clone(), verdicts.clone());
        give.send(maker(dropped)).unwrap();
    });
    let by_the_leaf = (made.recv().unwrap(), of_the_leaf, LEAF);
    let (verdicts, of_the_flow) = mpsc::channel();
    let probe = scene.probe();
    scene.flow(move |_| {
        let dropped = Left(probe.clone(), verdicts.clone());
        hand_out.send(make(dropped)).unwrap();
        Ok(())
    });
    [by_the_leaf, (made.recv().unwrap(), of_the_flow, BOUND)]
}

#[test]
fn what_a_job_made_and_nobody_used_is_dropped_for_that_job() {
    let scene = Scene::new();
    let (dispatcher, workflow) = (scene.dispatcher.clone(), scene.workflow.clone());
    let begun = made_inside(&scene, move |dropped| {
        Mutex::new(dispatcher.submit_with(&workflow, dropped))
    });
    for (submission, verdicts, expected) in begun {
        drop(submission);
        assert_eq!(verdicts.recv().unwrap(), expected, "a submission");
    }
    let bound = made_inside(&scene, |dropped| {
        let context = JobContext::current().unwrap();
        let work = context.bind(move || drop(dropped));
        Mutex::new(Box::new(work) as Box<dyn FnOnce() + Send>)
    });
    for (work, verdicts, expected) in bound {
        drop(work);
        assert_eq!(verdicts.recv().unwrap(), expected, "bound work");
    }
    let stops = made_inside(&scene, |dropped| StopOnce::new(move || drop(dropped)));
    for (stop, verdicts, expected) in stops {
        drop(stop);
        assert_eq!(verdicts.recv().unwrap(), expected, "a stop");
    }
    let stops = made_inside(&scene, |dropped| StopOnce::new(move || drop(dropped)));
    for (stop, verdicts, expected) in stops {
        stop.stop();
        assert_eq!(verdicts.recv().unwrap(), expected, "a stop that ran");
    }
}

#[test]
fn a_submission_that_another_makes_is_described_and_dropped_for_who_began_it() {
    let scene = Scene::new();
    let (dispatcher, workflow) = (scene.dispatcher.clone(), scene.workflow.clone());
    let begun = made_inside(&scene, move |dropped| {
        Mutex::new(dispatcher.submit_with(&workflow, dropped))
    });
    for (submission, verdicts, expected) in begun {
        let handle = submission.into_inner().unwrap().submit().unwrap();
        assert_eq!(handle.get().is_ok(), expected != LEAF);
        assert_eq!(verdicts.recv().unwrap(), expected, "when it is described");
        // Refused it is the leaf's that began it; else it is one itself, and has run.
        assert_eq!(verdicts.recv().unwrap(), LEAF, "when it is dropped");
    }
}

#[test]
fn a_stoppable_stops_for_whoever_registered_it() {
    struct Stopping(Mutex<Option<Left>>);

    impl Stoppable for Stopping {
        fn stop(&self) {
            drop(self.0.lock().unwrap().take());
        }
    }

    // The verdicts are of another dispatcher: the one that stops takes nothing any more.
    let open = Scene::new();
    let scene = Scene::new();
    let (verdicts, heard) = mpsc::channel();
    let (probe, dispatcher) = (open.probe(), scene.dispatcher.clone());
    leaf(&scene, move |_| {
        let dropped = Left(probe.clone(), verdicts.clone());
        dispatcher.register_stoppable(Arc::new(Stopping(Mutex::new(Some(dropped)))));
    });
    scene.dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    assert_eq!(heard.recv().unwrap(), LEAF);
}

#[test]
fn an_event_of_a_job_is_asked_for_that_job_on_an_observers_thread() {
    struct Asked(Mutex<Option<Left>>);

    impl std::fmt::Debug for Asked {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("Asked")
        }
    }

    impl AppEvent for Asked {
        fn name(&self) -> &str {
            "asked"
        }

        fn message(&self) -> String {
            drop(self.0.lock().unwrap().take());
            String::new()
        }
    }

    struct Reading;

    impl Observer for Reading {
        fn observe(&self, event: &Arc<Event>) {
            let _ = event.message();
        }
    }

    let scene = Scene::new();
    scene
        .dispatcher
        .subscribe(EventFilter::all(), Arc::new(Reading))
        .unwrap()
        .detach();
    let made = made_inside(&scene, |dropped| {
        let context = JobContext::current().unwrap();
        context.publish_event(Arc::new(Asked(Mutex::new(Some(dropped)))));
    });
    for ((), verdicts, expected) in made {
        assert_eq!(verdicts.recv().unwrap(), expected);
    }
}
