//! What is told of a job comes in one order, to everybody: random workflows on a clock that the
//! test owns.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use nucleo_runtime::admission::CountingGate;
use nucleo_runtime::events::{
    AppEvent, Event, EventFamily, EventFilter, EventKind, LifecycleEvent, LimiterChange, Observer,
    Severity,
};
use nucleo_runtime::observe::Trajectory;
use nucleo_runtime::testing::{EventRecorder, quiesce};
use nucleo_runtime::{
    Doer, Job, JobContext, JobDispatcher, JobError, JobHandle, JobRequirements, JobResources,
    JobState, ManualClock, OrchestratorContext, RetrySignal, Workflow,
};
use proptest::prelude::*;

/// What becomes of a leaf.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Succeed,
    Fail,
    Panic,
    /// Asks for that many more attempts; more than three are refused.
    Again(u32),
    /// Sleeps until it times out.
    Sleep,
    /// Ignores that it times out, and goes on talking after it was left behind.
    Stuck,
    /// Sleeps, and is cancelled by its parent.
    Cancelled,
}

#[derive(Clone, Debug)]
enum Plan {
    Leaf {
        fate: Fate,
        says: u8,
        needs_permit: bool,
        after_the_one_before: bool,
    },
    Node {
        steps: Vec<Vec<Plan>>,
        fails: bool,
    },
}

fn fate() -> impl Strategy<Value = Fate> {
    prop_oneof![
        4 => Just(Fate::Succeed),
        2 => Just(Fate::Fail),
        1 => Just(Fate::Panic),
        2 => (1..=4_u32).prop_map(Fate::Again),
        1 => Just(Fate::Sleep),
        1 => Just(Fate::Stuck),
        1 => Just(Fate::Cancelled),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let leaf = (fate(), 0..3_u8, any::<bool>(), any::<bool>()).prop_map(
        |(fate, says, needs_permit, after_the_one_before)| Plan::Leaf {
            fate,
            says,
            needs_permit,
            after_the_one_before,
        },
    );
    leaf.prop_recursive(3, 24, 4, |inner| {
        let step = prop::collection::vec(inner, 1..4);
        (prop::collection::vec(step, 1..4), any::<bool>())
            .prop_map(|(steps, fails)| Plan::Node { steps, fails })
    })
}

/// What all jobs of a case share.
struct World {
    gate: Arc<CountingGate>,
    /// Opens when those that are stuck may go on.
    open: Mutex<bool>,
    opened: Condvar,
    submitted: Mutex<Vec<Submitted>>,
    /// Somebody cancels the whole workflow, so that any job may end so.
    cancelled: AtomicBool,
}

struct Submitted {
    id: String,
    parent: Option<String>,
    step: Option<i64>,
    /// The state that it ends in, when nobody else interferes; `None` when that depends on others.
    expected: Option<JobState>,
}

impl World {
    fn note<T>(
        &self,
        handle: &JobHandle<T>,
        parent: Option<&str>,
        step: Option<i64>,
        expected: Option<JobState>,
    ) {
        self.submitted.lock().unwrap().push(Submitted {
            id: handle.job_id().to_owned(),
            parent: parent.map(str::to_owned),
            step,
            expected,
        });
    }

    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn wait_until_open(&self) {
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
    }
}

#[derive(Debug)]
struct Note;

impl AppEvent for Note {
    fn name(&self) -> &str {
        "note"
    }
}

struct Leaf {
    world: Arc<World>,
    fate: Fate,
    says: u8,
    needs_permit: bool,
    attempts: u32,
}

impl Leaf {
    fn talk(&self, context: &JobContext) {
        for n in 0..self.says {
            context.publish("working", Some(n));
            context.publish_event(Arc::new(Note));
            context.publish_user_notification(Severity::Info, "note", "working");
        }
    }
}

impl Job for Leaf {
    type Output = u32;

    fn timeout(&self) -> Option<Duration> {
        Some(match self.fate {
            Fate::Sleep | Fate::Stuck => Duration::from_secs(20),
            // The clock of the test runs far faster than the machine.
            _ => Duration::from_secs(1 << 40),
        })
    }

    fn requirements(&self) -> JobRequirements {
        if self.needs_permit {
            JobRequirements::none().permit(&self.world.gate)
        } else {
            JobRequirements::none()
        }
    }

    fn execute(&mut self, _: &JobResources, context: &JobContext) -> Result<u32, JobError> {
        self.attempts += 1;
        self.talk(context);
        match self.fate {
            Fate::Succeed => {}
            Fate::Fail => return Err(JobError::correctable("as planned")),
            // As a panic, but without a word on stderr.
            Fate::Panic => std::panic::resume_unwind(Box::new("as planned")),
            Fate::Again(times) if self.attempts <= times => {
                return Err(RetrySignal::transient("provider", "502").into());
            }
            Fate::Again(_) => {}
            Fate::Sleep | Fate::Cancelled => context.sleep(Duration::MAX)?,
            Fate::Stuck => {
                self.world.wait_until_open();
                self.talk(context);
            }
        }
        Ok(self.attempts)
    }
}

struct Node {
    world: Arc<World>,
    steps: Vec<Vec<Plan>>,
    fails: bool,
}

/// A handle of either kind.
enum Child {
    Leaf(JobHandle<u32>),
    Node(JobHandle<usize>),
}

impl Child {
    fn wait(&self) -> bool {
        match self {
            Self::Leaf(handle) => handle.get().is_ok(),
            Self::Node(handle) => handle.get().is_ok(),
        }
    }
}

impl Node {
    fn submit(
        &self,
        context: &OrchestratorContext,
        plan: &Plan,
        before: Option<&Child>,
        step: i64,
    ) -> Result<Child, JobError> {
        let parent = Some(context.job_id());
        match plan {
            Plan::Leaf {
                fate,
                says,
                needs_permit,
                after_the_one_before,
            } => {
                let leaf = leaf(&self.world, *fate, *says, *needs_permit);
                let mut submission = context.submit_with(leaf).in_current_step();
                let dependency = before.filter(|_| *after_the_one_before);
                match dependency {
                    Some(Child::Leaf(handle)) => submission = submission.after(handle),
                    Some(Child::Node(handle)) => submission = submission.after(handle),
                    None => {}
                }
                let handle = submission.submit()?;
                let expected = dependency.is_none().then(|| ends(*fate));
                self.world.note(&handle, parent, Some(step), expected);
                if matches!(fate, Fate::Cancelled) {
                    handle.cancel("as planned");
                }
                Ok(Child::Leaf(handle))
            }
            Plan::Node { steps, fails } => {
                let node = Node {
                    world: Arc::clone(&self.world),
                    steps: steps.clone(),
                    fails: *fails,
                };
                let handle = context.submit_in_current_step(node)?;
                let expected = Some(if *fails {
                    JobState::Failed
                } else {
                    JobState::Completed
                });
                self.world.note(&handle, parent, Some(step), expected);
                Ok(Child::Node(handle))
            }
        }
    }
}

impl Doer for Node {
    type Output = usize;

    fn execute(&mut self, context: &OrchestratorContext) -> Result<usize, JobError> {
        let mut succeeded = 0;
        for plans in &self.steps {
            let step = context.next_step();
            let mut children: Vec<Child> = Vec::new();
            for plan in plans {
                children.push(self.submit(context, plan, children.last(), step)?);
            }
            context.publish("a step is out", None);
            succeeded += children.iter().filter(|child| child.wait()).count();
        }
        if self.fails {
            return Err(JobError::correctable("as planned"));
        }
        Ok(succeeded)
    }
}

fn leaf(world: &Arc<World>, fate: Fate, says: u8, needs_permit: bool) -> Leaf {
    Leaf {
        world: Arc::clone(world),
        fate,
        says,
        needs_permit,
        attempts: 0,
    }
}

fn ends(fate: Fate) -> JobState {
    match fate {
        Fate::Succeed | Fate::Again(0..=3) => JobState::Completed,
        Fate::Fail | Fate::Panic | Fate::Again(_) => JobState::Failed,
        Fate::Sleep | Fate::Stuck => JobState::TimedOut,
        Fate::Cancelled => JobState::Cancelled,
    }
}

/// An observer that is always behind.
struct Slow(Arc<EventRecorder>);

impl Observer for Slow {
    fn observe(&self, event: &Arc<Event>) {
        for _ in 0..20 {
            std::thread::yield_now();
        }
        self.0.observe(event);
    }
}

fn by_job(events: &[Arc<Event>]) -> HashMap<String, Vec<Arc<Event>>> {
    let mut jobs: HashMap<String, Vec<Arc<Event>>> = HashMap::new();
    for event in events {
        if let Some(job) = event.snapshot() {
            let told = jobs.entry(job.job_id().to_owned()).or_default();
            told.push(Arc::clone(event));
        }
    }
    jobs
}

/// EVT-7 for one job.
fn check_order(events: &[Arc<Event>]) -> Result<(), TestCaseError> {
    let kinds: Vec<_> = events.iter().map(|event| event.kind()).collect();
    let root = events[0].snapshot().is_some_and(|job| job.is_root());
    let count = |kind: EventKind| kinds.iter().filter(|told| **told == kind).count();

    prop_assert_eq!(kinds[0], EventKind::JobScheduled, "{:?}", kinds);
    prop_assert_eq!(count(EventKind::JobScheduled), 1, "{:?}", kinds);
    let terminals = kinds.iter().filter(|kind| kind.is_terminal()).count();
    prop_assert_eq!(terminals, 1, "{:?}", kinds);
    let end = kinds.iter().position(|kind| kind.is_terminal()).unwrap();
    let after: &[EventKind] = if root {
        &[EventKind::WorkflowComplete]
    } else {
        &[]
    };
    prop_assert_eq!(&kinds[end + 1..], after, "{:?}", kinds);

    // Attempts count up; whatever the job says, it says in an attempt; what an attempt needs was
    // granted before it started, and a retry is told between two attempts.
    let (mut attempt, mut grants, mut retries) = (0, 0, 0);
    let mut limited = false;
    for event in &events[..end] {
        match &**event {
            Event::Lifecycle(LifecycleEvent::Started(started)) => {
                attempt += 1;
                prop_assert_eq!(started.attempt, attempt, "{:?}", kinds);
                prop_assert_eq!(retries, attempt - 1, "{:?}", kinds);
                if limited {
                    prop_assert_eq!(grants, attempt, "{:?}", kinds);
                }
            }
            Event::Limiter(limit) => {
                limited = true;
                if let LimiterChange::GrantedImmediate | LimiterChange::GrantedFromHold =
                    limit.change
                {
                    grants += 1;
                }
            }
            Event::Retry(retry) => {
                retries += 1;
                prop_assert_eq!(retry.attempt(), attempt, "{:?}", kinds);
            }
            Event::Progress(_) | Event::Notification(_) | Event::App(_) => {
                prop_assert!(attempt > 0, "{:?}", kinds);
            }
            _ => {}
        }
    }
    Ok(())
}

/// ORD-2: the tree that was run, and each parent's children in their order.
fn check_tree(trajectory: &Trajectory, submitted: &[Submitted]) -> Result<(), TestCaseError> {
    let nodes = trajectory.walk();
    prop_assert_eq!(nodes.len(), submitted.len());
    let known: HashMap<&str, &Submitted> =
        submitted.iter().map(|job| (job.id.as_str(), job)).collect();
    let mut above: Vec<&str> = Vec::new();
    let mut seen = HashSet::new();
    let mut last_child: HashMap<&str, (Option<i64>, bool, Option<std::time::SystemTime>)> =
        HashMap::new();
    for node in &nodes {
        let id = node.snapshot.job_id();
        let job = known[id];
        prop_assert!(seen.insert(id));
        above.truncate(node.depth);
        prop_assert_eq!(above.len(), node.depth);
        prop_assert_eq!(above.last().copied(), job.parent.as_deref());
        prop_assert_eq!(node.ordinal, job.step);
        if let Some(parent) = &job.parent {
            let started = node.snapshot.started_at();
            let place = (node.ordinal, started.is_none(), started);
            if let Some(before) = last_child.insert(parent, place) {
                prop_assert!(before <= place, "{before:?} {place:?}");
            }
        }
        above.push(id);
    }
    Ok(())
}

fn run(plans: &[Plan], cancel_after: Option<u32>) -> Result<(), TestCaseError> {
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .stack_size(256 * 1024)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("user", "random").unwrap();
    let everything = EventRecorder::new();
    let in_workflow = EventRecorder::new();
    let lifecycle = EventRecorder::new();
    let slow = EventRecorder::new();
    let trajectory = Arc::new(Trajectory::of(workflow.id()));
    let subscribe = |filter: EventFilter, observer: Arc<dyn Observer>| {
        dispatcher.subscribe(filter, observer).unwrap().detach();
    };
    subscribe(EventFilter::all(), everything.clone());
    subscribe(
        EventFilter::all().workflow(workflow.id()),
        in_workflow.clone(),
    );
    let families = EventFilter::all()
        .family(EventFamily::Lifecycle)
        .family(EventFamily::Workflow);
    subscribe(families, lifecycle.clone());
    subscribe(EventFilter::all(), Arc::new(Slow(slow.clone())));
    subscribe(trajectory.filter(), trajectory.clone());

    let world = Arc::new(World {
        gate: Arc::new(CountingGate::new("gate", 2).unwrap()),
        open: Mutex::new(false),
        opened: Condvar::new(),
        submitted: Mutex::default(),
        cancelled: AtomicBool::new(cancel_after.is_some()),
    });
    for plan in plans {
        match plan {
            Plan::Leaf {
                fate,
                says,
                needs_permit,
                ..
            } => {
                let leaf = leaf(&world, *fate, *says, *needs_permit);
                let handle = dispatcher.submit(&workflow, leaf).unwrap();
                world.note(&handle, None, None, Some(ends(*fate)));
                if matches!(fate, Fate::Cancelled) {
                    handle.cancel("as planned");
                }
            }
            Plan::Node { steps, fails } => {
                let node = Node {
                    world: Arc::clone(&world),
                    steps: steps.clone(),
                    fails: *fails,
                };
                let handle = dispatcher.submit(&workflow, node).unwrap();
                let expected = if *fails {
                    JobState::Failed
                } else {
                    JobState::Completed
                };
                world.note(&handle, None, None, Some(expected));
            }
        }
    }
    let mut turns = 0;
    while dispatcher.job_count() > 0 {
        clock.advance(Duration::from_millis(500));
        std::thread::yield_now();
        turns += 1;
        if cancel_after == Some(turns) {
            dispatcher.cancel_workflow(workflow.id(), "by the test");
        }
    }
    // Those that were left behind go on, and say more.
    world.open();
    while !dispatcher.unresponsive().is_empty() {
        std::thread::yield_now();
    }
    quiesce(&dispatcher);

    let submitted = world.submitted.lock().unwrap();
    let told = by_job(&everything.events());
    prop_assert_eq!(told.len(), submitted.len());
    for events in told.values() {
        check_order(events)?;
    }
    // The same at every subscriber, as far as it is for them.
    let views = [
        (&in_workflow, None),
        (&slow, None),
        (
            &lifecycle,
            Some([EventFamily::Lifecycle, EventFamily::Workflow]),
        ),
    ];
    for (recorder, families) in views {
        let theirs = by_job(&recorder.events());
        for (id, events) in &told {
            let wanted: Vec<_> = events
                .iter()
                .filter(|event| families.is_none_or(|wanted| wanted.contains(&event.family())))
                .map(Arc::as_ptr)
                .collect();
            let heard: Vec<_> = theirs[id].iter().map(Arc::as_ptr).collect();
            prop_assert_eq!(heard, wanted);
        }
    }
    for job in submitted.iter() {
        let end = told[&job.id].iter().find(|event| event.is_terminal());
        let state = end.unwrap().snapshot().unwrap().state();
        match job.expected {
            Some(expected) if !world.cancelled.load(Ordering::Relaxed) => {
                prop_assert_eq!(state, expected, "{}", job.id);
            }
            _ => prop_assert!(state.is_terminal()),
        }
    }
    check_tree(&trajectory, &submitted)?;
    prop_assert_eq!(world.gate.in_use(), 0);
    dispatcher.shutdown(Duration::from_secs(5)).unwrap();
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn every_subscriber_hears_of_each_job_in_order_and_the_tree_is_rebuilt(
        plans in prop::collection::vec(plan(), 1..3),
        cancel_after in prop::option::weighted(0.25, 1..200_u32),
    ) {
        run(&plans, cancel_after)?;
    }
}
