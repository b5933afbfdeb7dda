//! The memory gate in the line: who waits for memory, and who goes when.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::Duration;

use nucleo_runtime::admission::memory_source::FixedBudget;
use nucleo_runtime::admission::memory_source::ProcessMemory;
use nucleo_runtime::admission::{
    AccountCategory, CountingGate, Demand, Grant, MemoryReading, MemorySource, MemoryStatus,
    MemoryZone,
};
use nucleo_runtime::events::{
    Event, EventFilter, EventKind, LimiterChange, LimiterEvent, MessageBus, RejectReason,
    Subscription,
};
use nucleo_runtime::testing::{self, AdmissionBench, ScriptedMemory};
use nucleo_runtime::{
    Clock, JobContext, JobDispatcher, JobError, JobRequirements, ManualClock, Workflow, job_fn,
};

type Answer = (usize, Result<Grant, JobError>);

/// A line behind a memory of 1 000, on a clock that the test owns.
struct Gated {
    clock: ManualClock,
    bus: MessageBus,
    bench: Arc<AdmissionBench>,
    memory: ScriptedMemory,
    db: Arc<CountingGate>,
    contexts: Vec<JobContext>,
    sender: mpsc::Sender<Answer>,
    answers: mpsc::Receiver<Answer>,
    /// How many left the line and were received.
    received: usize,
    running: VecDeque<Grant>,
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// The delay at a reading in thousandths, in milliseconds.
fn delay(used: u32) -> u64 {
    let along = ((f64::from(used) / 1_000.0 - 0.80) / (0.95 - 0.80)).clamp(0.0, 1.0);
    ((30_000.0 * along * along * along) as u64).max(50)
}

fn of(gate: &Arc<CountingGate>) -> Demand {
    let mut demand = Demand::new();
    demand.add(gate, ());
    demand
}

fn gate(name: &str, capacity: u32) -> Arc<CountingGate> {
    Arc::new(CountingGate::new(name, capacity).unwrap())
}

impl Gated {
    /// Without the rule of progress, so that nothing goes but by its pace.
    fn new() -> Self {
        let memory = ScriptedMemory::new(1_000);
        // The evaluator looks once when it starts: the first reading is to be the test's.
        memory.fail("not set yet");
        Self::over(memory.clone(), memory, false)
    }

    fn over(source: impl MemorySource, memory: ScriptedMemory, progress: bool) -> Self {
        Self::on(ManualClock::new(), source, memory, progress)
    }

    fn on(
        clock: ManualClock,
        source: impl MemorySource,
        memory: ScriptedMemory,
        progress: bool,
    ) -> Self {
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let bus = MessageBus::standalone(Arc::clone(&shared));
        let bench = AdmissionBench::with_memory(shared, &bus, source, progress).unwrap();
        bench.quiesce();
        let (sender, answers) = mpsc::channel();
        Self {
            clock,
            bus,
            bench: Arc::new(bench),
            memory,
            db: gate("db", 100),
            contexts: Vec::new(),
            sender,
            answers,
            received: 0,
            running: VecDeque::new(),
        }
    }

    fn context(&self) -> JobContext {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        testing::context(&clock, &self.bus, "user", None).unwrap()
    }

    fn admit(&self, demand: Demand) -> Grant {
        let context = self.context();
        self.bench.admission().admit(demand, &context).unwrap()
    }

    /// Asks for one of `gate`, and has to wait.
    fn park_on(&mut self, gate: &Arc<CountingGate>) {
        self.bench.quiesce();
        let before = self.parked();
        self.ask(of(gate));
        assert_eq!(self.parked(), before + 1, "it had to wait");
    }

    /// Asks on a thread of its own and returns once that is parked or has its answer.
    fn ask(&mut self, demand: Demand) {
        let context = self.context();
        let number = self.contexts.len();
        self.contexts.push(context.clone());
        let (bench, sender) = (Arc::clone(&self.bench), self.sender.clone());
        thread::spawn(move || {
            let answer = bench.admission().admit(demand, &context);
            // Nobody listens any more when the test is over.
            let _ = sender.send((number, answer));
        });
        self.settle();
    }

    /// Returns once everyone who asked waits or was received.
    fn settle(&mut self) {
        loop {
            for (_, answer) in self.answers.try_iter() {
                self.running.push_back(answer.unwrap());
                self.received += 1;
            }
            // In this order: who goes from one to the other meanwhile is in neither.
            let everyone = |line: &Self| line.received + line.parked() == line.contexts.len();
            if everyone(self) {
                self.bench.quiesce();
                if everyone(self) {
                    return;
                }
            }
            thread::yield_now();
        }
    }

    /// How many more were granted than `known`.
    fn granted_since(&mut self, known: usize) -> usize {
        self.settle();
        self.received - known
    }

    fn park(&mut self, count: usize) {
        let db = Arc::clone(&self.db);
        for _ in 0..count {
            self.park_on(&db);
        }
    }

    /// A line of `count` under the latch, which cleared at `reading`, so that one was released.
    fn draining(count: usize, reading: u64) -> Self {
        let mut line = Self::new();
        line.memory.set(960);
        line.park(count);
        line.read(reading);
        line.expect_released(&[0]);
        line
    }

    fn parked(&self) -> usize {
        self.bench.admission().queue_len()
    }

    fn status(&self) -> MemoryStatus {
        self.bench.admission().memory().unwrap()
    }

    /// Memory changes, and the evaluator looks.
    fn read(&self, used: u64) {
        self.memory.set(used);
        self.bench.wake();
        self.bench.quiesce();
    }

    fn advance(&self, millis: u64) {
        self.clock.advance(ms(millis));
        self.bench.quiesce();
    }

    /// Exactly these left the line with a grant since the last time, in this order.
    fn expect_released(&mut self, numbers: &[usize]) {
        let left = self.contexts.len() - self.parked();
        assert_eq!(left - self.received, numbers.len(), "released since");
        for number in numbers {
            let (asked, answer) = self.answers.recv().unwrap();
            assert_eq!(asked, *number, "the first in line goes first");
            self.running.push_back(answer.unwrap());
            self.received += 1;
        }
    }

    /// One more of the line goes, whoever it is.
    fn expect_one(&mut self) {
        self.expect_released(&[self.received]);
    }

    fn expect_none(&mut self) {
        self.expect_released(&[]);
    }

    /// The job that runs longest finishes.
    fn finish_one(&mut self) {
        self.running.pop_front().unwrap().release();
        self.bench.quiesce();
    }

    fn record(&self) -> (Subscription, mpsc::Receiver<LimiterEvent>) {
        self.bus.start();
        let (sender, receiver) = mpsc::channel();
        let sender = Mutex::new(sender);
        let filter = EventFilter::all().kind(EventKind::Limiter);
        let observer = Arc::new(move |event: &Arc<Event>| {
            if let Event::Limiter(event) = &**event {
                let _ = sender.lock().unwrap().send(event.clone());
            }
        });
        (self.bus.subscribe(filter, observer).unwrap(), receiver)
    }

    /// Every event so far, in order. The last thing that a test asks.
    fn told(&self, events: &mpsc::Receiver<LimiterEvent>) -> Vec<LimiterEvent> {
        self.bus.stop().unwrap();
        events.try_iter().collect()
    }
}

impl Drop for Gated {
    fn drop(&mut self) {
        self.bench.stop();
    }
}

fn on_memory(events: &[LimiterEvent], change: LimiterChange) -> usize {
    events
        .iter()
        .filter(|event| &*event.account == "memory" && event.change == change)
        .count()
}

// case MEM-31
#[test]
fn with_nobody_in_memorys_line_each_is_granted_as_it_arrives() {
    let line = Gated::new();
    for reading in [100, 490, 800, 880, 900, 940] {
        line.memory.set(reading);
        let grants: Vec<_> = (0..5).map(|_| line.admit(of(&line.db))).collect();
        assert_eq!(line.parked(), 0);
        assert_eq!(line.db.in_use(), 5);
        drop(grants);
    }
}

// case MEM-32
#[test]
fn a_demand_for_nothing_never_meets_memory() {
    let mut line = Gated::new();
    let (_subscription, events) = line.record();
    line.memory.set(960);
    for _ in 0..3 {
        assert!(line.admit(Demand::new()).is_empty());
    }
    line.park(3);
    line.read(890);
    line.expect_one();
    drop(line.admit(Demand::new()));
    assert_eq!(line.parked(), 2);
    line.advance(10);
    assert_eq!(on_memory(&line.told(&events), LimiterChange::Held), 3);
}

// case MEM-34
#[test]
fn each_job_that_finishes_lets_one_go_in_order() {
    let mut line = Gated::draining(5, 890);
    line.read(940);
    line.expect_none();
    for _ in 0..4 {
        line.finish_one();
        line.expect_one();
    }
    assert_eq!(line.parked(), 0);
}

/// Ten jobs that started at half, and 25 that came under the latch.
fn ten_running_and_a_line() -> Gated {
    let mut line = Gated::new();
    line.memory.set(500);
    for _ in 0..10 {
        let grant = line.admit(of(&line.db));
        line.running.push_back(grant);
    }
    line.memory.set(960);
    line.park(25);
    line
}

// case MEM-35
#[test]
fn growth_since_lone_arrivals_prices_the_line_too() {
    let mut line = ten_running_and_a_line();
    line.advance(60_000);
    line.read(890);
    line.expect_none();
    assert!(line.status().pacing > Duration::from_secs(50 * 60));
    assert_eq!(line.status().penalty, 72_000.0);
    line.read(940);
    for _ in 0..10 {
        line.finish_one();
        line.expect_one();
    }
    assert_eq!(line.parked(), 15);
}

// case MEM-49
#[test]
fn a_completion_under_the_latch_is_one_look_when_it_clears() {
    let mut line = ten_running_and_a_line();
    for _ in 0..3 {
        line.finish_one();
    }
    line.expect_none();
    line.advance(60_000);
    line.read(890);
    line.expect_one();
    line.bench.wake();
    line.bench.quiesce();
    line.expect_none();
    assert!(line.status().pacing > Duration::from_secs(50 * 60));
}

// case MEM-36
#[test]
fn the_line_goes_one_by_one_at_the_delay_of_the_reading() {
    let mut line = Gated::new();
    line.memory.set(960);
    line.park(25);
    line.advance(60_000);
    line.expect_none();
    line.read(890);
    line.expect_one();
    line.advance(delay(890) - 1);
    line.expect_none();
    line.advance(1);
    line.expect_one();
    for _ in 2..6 {
        line.advance(delay(890));
        line.expect_one();
    }
    assert_eq!(line.parked(), 19);
    assert_eq!(line.db.in_use(), 6);
}

// case MEM-37
#[test]
fn a_line_at_a_low_reading_is_gone_at_fifty_milliseconds_each() {
    let mut line = Gated::new();
    let (_subscription, events) = line.record();
    line.memory.set(960);
    line.park(25);
    line.read(790);
    line.expect_one();
    line.advance(49);
    line.expect_none();
    line.advance(1);
    line.expect_one();
    for _ in 2..25 {
        line.advance(50);
        line.expect_one();
    }
    let told = line.told(&events);
    assert_eq!(on_memory(&told, LimiterChange::Held), 25);
    assert_eq!(on_memory(&told, LimiterChange::GrantedFromHold), 25);
    let last = told.iter().rfind(|event| &*event.account == "memory");
    let last = last.unwrap();
    assert_eq!(last.waiters, 0);
    assert_eq!(last.wait, ms(24 * 50));
    assert_eq!(last.category, AccountCategory::Memory);
    assert_eq!((last.in_use, last.capacity), (790, 1_000));
}

// case MEM-39
#[test]
fn a_long_line_at_a_high_reading_goes_with_the_jobs_that_finish() {
    let mut line = Gated::draining(25, 890);
    line.memory.set(948);
    let mut released = 0;
    for _ in 0..84 / 3 {
        line.advance(3_000);
        line.finish_one();
        line.expect_one();
        released += 1;
        if released == 20 {
            break;
        }
    }
    assert_eq!(released, 20);
}

// case MEM-40
#[test]
fn memory_is_looked_at_every_two_seconds_while_somebody_waits() {
    let mut line = Gated::draining(5, 890);
    line.memory.set(940);
    line.advance(1_900);
    line.expect_none();
    line.memory.set(300);
    line.advance(99);
    line.expect_none();
    line.advance(1);
    line.expect_one();
    line.advance(50);
    line.expect_one();
}

// case MEM-41
#[test]
fn a_lower_reading_shortens_a_delay_that_is_running() {
    let mut line = Gated::draining(3, 890);
    line.read(900);
    line.advance(1_200);
    line.expect_none();
    line.read(850);
    line.expect_one();
}

// case MEM-42
#[test]
fn the_latch_clears_below_ninety_and_lets_one_go() {
    let mut line = Gated::new();
    line.memory.set(960);
    line.park(3);
    for still in [940, 900] {
        line.read(still);
        line.expect_none();
        assert_eq!(line.status().zone, MemoryZone::Critical);
    }
    // Nothing but the look of every two seconds will find it.
    line.memory.set(899);
    line.advance(1_999);
    line.expect_none();
    line.advance(1);
    line.expect_one();
    line.bench.wake();
    line.bench.quiesce();
    line.expect_none();
}

// case MEM-44
// case T2b
#[test]
fn a_climb_is_priced_by_its_growth_and_forgiven_when_it_falls() {
    let mut line = Gated::new();
    line.memory.set(960);
    line.park(6);
    line.read(800);
    line.expect_one();
    line.read(850);
    line.expect_none();
    assert_eq!((line.status().floor, line.status().penalty), (0.80, 1.0));
    line.memory.set(830);
    line.advance(delay(850));
    line.expect_one();
    assert_eq!((line.status().floor, line.status().penalty), (0.83, 8.0));
    line.read(880);
    line.expect_none();
    assert_eq!((line.status().floor, line.status().penalty), (0.83, 8.0));
    line.memory.set(860);
    line.advance(delay(880));
    line.expect_none();
    assert_eq!((line.status().floor, line.status().penalty), (0.86, 64.0));
    assert_eq!(line.status().pacing, ms(64 * delay(860)));

    line.advance(64 * delay(860) - delay(880) - 1);
    line.expect_none();
    line.advance(1);
    line.expect_one();
    line.memory.set(830);
    line.advance(2_000);
    line.expect_none();
    assert_eq!((line.status().floor, line.status().penalty), (0.83, 64.0));
    line.advance(64 * delay(830) - 2_000 - 1);
    line.expect_none();
    line.advance(1);
    line.expect_one();
    line.memory.set(940);
    line.advance(2_000);
    line.expect_none();
    assert_eq!((line.status().floor, line.status().penalty), (0.83, 8.0));
    line.memory.set(300);
    line.advance(2_000);
    line.expect_one();
    assert_eq!((line.status().floor, line.status().penalty), (0.30, 1.0));
}

// case MEM-45
#[test]
fn a_higher_reading_lengthens_a_delay_that_is_running() {
    let mut line = Gated::draining(4, 850);
    line.memory.set(920);
    line.advance(delay(850));
    line.expect_none();
    line.advance(delay(920) - delay(850) - 1);
    line.expect_none();
    line.advance(1);
    line.expect_one();
}

// case MEM-46
#[test]
fn a_cancelled_waiter_leaves_memorys_line() {
    let mut line = Gated::draining(5, 890);
    let second = line.contexts[1].clone();
    assert!(testing::cancel(&second, "not wanted"));
    let (asked, answer) = line.answers.recv().unwrap();
    assert_eq!(asked, 1);
    assert!(answer.unwrap_err().is_cancelled());
    line.received += 1;
    assert_eq!(line.parked(), 3);
    assert_eq!(line.status().held, 3);
    line.bench.quiesce();
    line.advance(delay(890));
    line.expect_released(&[2]);
}

// case MEM-47
#[test]
fn a_stop_fails_everyone_who_waits_for_memory() {
    let line = Gated::draining(5, 890);
    let (_subscription, events) = line.record();
    line.bench.stop();
    for _ in 0..4 {
        let (_, answer) = line.answers.recv().unwrap();
        assert!(answer.unwrap_err().is_cancelled());
    }
    assert_eq!(line.running.len(), 1);
    assert_eq!((line.parked(), line.status().held), (0, 0));
    assert!(
        line.told(&events).is_empty(),
        "their snapshots were not taken, for nobody listened when they asked"
    );
}

/// A memory whose reading takes time, once it is told to.
struct Slow {
    memory: ScriptedMemory,
    clock: ManualClock,
    armed: Arc<AtomicBool>,
}

impl MemorySource for Slow {
    fn read(&self) -> std::io::Result<MemoryReading> {
        if self.armed.swap(false, Ordering::SeqCst) {
            self.clock.advance(ms(50));
        }
        self.memory.read()
    }

    fn name(&self) -> &str {
        "slow"
    }
}

// case MEM-50
// case MEM-52
#[test]
fn a_delay_that_closes_during_a_walk_lets_the_head_go_at_the_next_and_nobody_else() {
    let clock = ManualClock::new();
    let memory = ScriptedMemory::new(1_000);
    let armed = Arc::new(AtomicBool::new(false));
    let source = Slow {
        memory: memory.clone(),
        clock: clock.clone(),
        armed: Arc::clone(&armed),
    };
    let mut line = Gated::on(clock, source, memory, false);
    line.memory.set(960);
    line.park(40);
    line.read(10);
    line.expect_one();
    // The pass reads the clock, then memory, and by then the delay is over; nothing runs that
    // could wake the evaluator again.
    armed.store(true, Ordering::SeqCst);
    line.bench.wake();
    while armed.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    line.bench.quiesce();
    line.expect_one();
    assert_eq!(line.parked(), 38);
}

#[test]
fn whoever_memory_let_pass_is_in_the_line_of_its_account_alone() {
    let mut line = Gated::new();
    let (_subscription, events) = line.record();
    let (writer, free) = (gate("writer", 1), gate("free", 100));
    line.read(500);
    let holder = line.admit(of(&writer));
    line.read(960);
    line.park_on(&writer);
    assert_eq!(line.status().held, 1);
    // It passes memory, and is short on the writer.
    line.read(600);
    line.advance(50);
    let status = line.status();
    assert_eq!((status.held, status.zone), (0, MemoryZone::Green));
    for _ in 0..20 {
        line.ask(of(&free));
    }
    assert_eq!(line.granted_since(0), 20, "at once, whatever the pace");
    // The latch holds it again, and is heard of once.
    line.read(960);
    assert_eq!(line.status().held, 1);
    // So far down that no growth is left to pay for.
    line.read(300);
    line.advance(50);
    assert_eq!(line.status().held, 0);
    holder.release();
    line.settle();
    assert_eq!(line.received, 21);
    let told = line.told(&events);
    assert_eq!(on_memory(&told, LimiterChange::Held), 1);
    assert_eq!(on_memory(&told, LimiterChange::GrantedFromHold), 1);
}

#[test]
fn an_account_lets_its_own_line_go_whatever_the_pace_of_memorys() {
    let mut line = Gated::new();
    let (writer, free) = (gate("writer", 1), gate("free", 100));
    line.read(500);
    let holder = line.admit(of(&writer));
    line.park_on(&writer);
    // Behind it a line of memory's, which nothing lets go for a while.
    line.read(960);
    for _ in 0..3 {
        line.park_on(&free);
    }
    line.read(890);
    assert_eq!(line.status().held, 4);
    // The first leaves it for the writer's, the second goes.
    line.advance(delay(890));
    line.expect_released(&[1]);
    assert_eq!(line.status().held, 2);
    holder.release();
    line.bench.quiesce();
    line.expect_released(&[0]);
    assert_eq!((line.status().held, line.parked()), (2, 2));
    line.bench.stop();
    line.contexts.clear();
}

// case MEM-52
#[test]
fn while_the_head_waits_for_memory_so_does_everyone_behind_it() {
    let mut line = Gated::draining(3, 890);
    line.read(940);
    let (_subscription, events) = line.record();
    let (other, third) = (gate("other", 9), gate("third", 9));
    line.park_on(&other);
    line.park_on(&third);
    assert_eq!(line.status().held, 4);
    assert_eq!((other.in_use(), third.in_use()), (0, 0));
    line.advance(delay(940));
    line.expect_released(&[1]);
    line.finish_one();
    line.expect_released(&[2]);
    line.finish_one();
    line.expect_released(&[3]);
    let told = line.told(&events);
    assert_eq!(on_memory(&told, LimiterChange::Held), 2, "each once");
    assert!(
        told.iter().all(|event| &*event.account != "third"),
        "an account is not asked, nor told of, while memory refuses"
    );
}

// case MEM-51
#[test]
fn whatever_memory_does_every_job_is_granted_and_nothing_overdrawn() {
    let mut line = Gated::new();
    line.db = gate("narrow", 8);
    let mut dice = 0x9E37_79B9_u64;
    let mut roll = move |faces: u64| {
        dice = dice
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (dice >> 33) % faces
    };
    let (mut granted, mut step) = (0, 0_u64);
    while granted < 150 {
        step += 1;
        assert!(step < 20_000, "{granted} of 150 were granted");
        if step % 7 == 0 {
            line.memory.set(400 + roll(570));
        }
        if line.contexts.len() < 150 {
            line.ask(of(&line.db));
        }
        line.advance(20 + roll(201));
        granted += line.granted_since(granted);
        assert!(line.db.in_use() <= 8);
        if roll(3) == 0
            && let Some(grant) = line.running.pop_front()
        {
            grant.release();
            line.bench.quiesce();
        }
    }
    line.running.clear();
    line.bench.quiesce();
    assert_eq!((line.db.in_use(), line.parked()), (0, 0));
}

// case ADE-09
#[test]
fn accounts_hear_nothing_while_memory_refuses() {
    let mut line = Gated::new();
    let (_subscription, events) = line.record();
    line.memory.set(960);
    line.park(1);
    line.bench.wake();
    line.bench.quiesce();
    line.clock.advance(ms(1_500));
    line.read(500);
    line.expect_one();
    line.finish_one();
    let told: Vec<_> = line
        .told(&events)
        .into_iter()
        .map(|event| (event.account.to_string(), event.change, event.waiters))
        .collect();
    assert_eq!(
        told,
        [
            ("memory".to_owned(), LimiterChange::Held, 1),
            ("memory".to_owned(), LimiterChange::GrantedFromHold, 0),
            ("db".to_owned(), LimiterChange::GrantedImmediate, 0),
            ("db".to_owned(), LimiterChange::Released, 0),
        ]
    );
}

#[test]
fn a_waiter_that_memory_held_and_that_leaves_is_told_of_there_too() {
    let mut line = Gated::new();
    let (_subscription, events) = line.record();
    line.memory.set(960);
    line.park(1);
    line.advance(700);
    testing::cancel(&line.contexts[0], "enough");
    let (_, answer) = line.answers.recv().unwrap();
    assert!(answer.unwrap_err().is_cancelled());
    let told = line.told(&events);
    let last = told.last().unwrap();
    assert_eq!(
        (&*last.account, last.change),
        ("memory", LimiterChange::Rejected)
    );
    assert_eq!(last.reason, Some(RejectReason::Cancelled));
    assert_eq!((last.wait, last.waiters), (ms(700), 0));
}

#[test]
fn a_release_is_stamped_by_a_grant_and_not_by_a_demand_that_is_short_elsewhere() {
    let mut line = Gated::new();
    line.memory.set(500);
    let full = gate("full", 1);
    let _holder = line.admit(of(&full));
    line.clock.advance(ms(60_000));
    line.memory.set(960);
    line.park_on(&full);
    line.park(2);
    line.read(500);
    // The head is past memory and short of its own account; the next in line goes instead.
    line.expect_released(&[1]);
    line.advance(50);
    line.expect_released(&[2]);
    assert_eq!(line.parked(), 1);
}

#[test]
fn a_wait_for_memory_is_among_the_waits_of_its_grant() {
    let mut line = Gated::new();
    line.memory.set(960);
    line.park(1);
    line.advance(1_200);
    line.read(500);
    line.expect_one();
    let grant = &line.running[0];
    assert_eq!(grant.wait(), ms(1_200));
    assert_eq!(grant.waits().collect::<Vec<_>>(), [("memory", ms(1_200))]);
}

#[test]
fn no_account_may_be_named_memory_beside_the_gate() {
    let line = Gated::new();
    let demand = of(&gate("memory", 1));
    let refused = line.bench.admission().admit(demand, &line.context());
    assert!(refused.unwrap_err().to_string().contains("'memory'"));
}

// case F27
#[test]
fn the_latch_holds_from_the_very_look_that_found_memory_critical() {
    let mut line = Gated::new();
    line.memory.set(949);
    let running = line.admit(of(&line.db));
    line.memory.set(950);
    line.park(1);
    assert_eq!(line.status().zone, MemoryZone::Critical);
    assert_eq!((line.status().used, line.status().held), (950, 1));
    drop(running);
    line.bench.quiesce();
    line.expect_none();
}

#[test]
fn a_source_that_fails_leaves_the_last_reading_and_says_so() {
    let line = Gated::new();
    drop(line.admit(of(&line.db)));
    assert_eq!(line.status().capacity, 0);
    line.memory.set(940);
    drop(line.admit(of(&line.db)));
    assert_eq!(line.status().fault, None);
    line.memory.fail("gone");
    drop(line.admit(of(&line.db)));
    let status = line.status();
    assert_eq!((status.used, status.zone), (940, MemoryZone::Green));
    assert!(
        status
            .fault
            .as_deref()
            .is_some_and(|why| why.contains("gone"))
    );
    assert!(status.to_string().contains("gone"));
    assert_eq!(line.parked(), 0);
}

struct Broken;

impl MemorySource for Broken {
    fn read(&self) -> std::io::Result<MemoryReading> {
        panic!("a source of the user's own")
    }

    fn name(&self) -> &str {
        panic!("nor a name")
    }
}

#[test]
fn a_source_that_panics_or_knows_no_memory_is_one_that_fails() {
    let line = Gated::over(Broken, ScriptedMemory::new(1), true);
    drop(line.admit(of(&line.db)));
    assert!(line.status().fault.is_some());
    let none = ScriptedMemory::new(0);
    let line = Gated::over(none.clone(), none, true);
    drop(line.admit(of(&line.db)));
    assert!(line.status().fault.is_some());
}

/// 500 jobs of 20 each, one arriving every 10 ms, each at work for a second and a half, in a memory
/// of 1 000. Answers the peak.
fn fan_out(memory: &ScriptedMemory, line: &mut Gated) -> u64 {
    const TAKES: u64 = 20;
    let at_work = gate("at work", 500);
    let (mut used, mut peak, mut started, mut finished, mut ticks) = (0, 0, 0, 0, 0_u64);
    let mut ends: VecDeque<u64> = VecDeque::new();
    memory.set(0);
    while finished < 500 {
        assert!(ticks < 10_000, "{finished} of 500 finished");
        let mut settle = |line: &mut Gated, ends: &mut VecDeque<u64>, used: &mut u64| {
            let known = started;
            started += line.granted_since(known);
            for _ in known..started {
                ends.push_back(ticks + 150);
                *used += TAKES;
                peak = peak.max(*used);
                memory.set(*used);
            }
        };
        while ends.front().is_some_and(|end| *end <= ticks) {
            ends.pop_front();
            used -= TAKES;
            memory.set(used);
            line.finish_one();
            finished += 1;
            settle(line, &mut ends, &mut used);
        }
        if line.contexts.len() < 500 {
            line.ask(of(&at_work));
            settle(line, &mut ends, &mut used);
        }
        line.advance(10);
        settle(line, &mut ends, &mut used);
        ticks += 1;
    }
    peak
}

// case F26
#[test]
fn a_fan_out_that_takes_memory_as_it_starts_stays_in_its_budget() {
    let mut line = Gated::new();
    let memory = line.memory.clone();
    let with = fan_out(&memory, &mut line);
    assert!(with <= 1_100, "the peak is {with} of 1 000");
    assert!(with >= 900, "the budget is used: {with} of 1 000");

    // The same with a gate that reads of nothing.
    let mut line = Gated::over(ScriptedMemory::new(1_000), ScriptedMemory::new(1), false);
    let without = fan_out(&memory, &mut line);
    assert!(
        without >= 2 * with,
        "{without} without, {with} with the gate"
    );
}

/// Blocks that are too small for the allocator to give back.
fn small_blocks(count: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| vec![1; 256]).collect()
}

// A resident set that never falls under a latch that nothing can clear: all finish (MEM-9).
#[cfg(target_os = "linux")]
#[test]
fn a_resident_set_that_never_falls_stops_nobody_for_good() {
    // The last of many small blocks pins the pages of those before it.
    let mut blocks = small_blocks(200_000);
    let pin = blocks.pop();
    drop(blocks);
    let full = ProcessMemory::new().unwrap().read().unwrap().used;
    let budget = FixedBudget::new(full).unwrap();
    let mut line = Gated::over(budget, ScriptedMemory::new(1), true);
    line.park(5);
    assert_eq!(line.status().zone, MemoryZone::Critical);
    let mut seconds = 0;
    while line.received < 5 {
        assert!(seconds <= 5 * 30, "{} of 5 went", line.received);
        if line.contexts.len() - line.parked() > line.received {
            line.expect_one();
            drop(small_blocks(1_000));
            line.finish_one();
            continue;
        }
        line.advance(1_000);
        seconds += 1;
    }
    assert!(seconds >= 30, "the first goes after half a minute");
    drop(pin);
}

#[test]
fn without_the_rule_of_progress_a_latch_holds_for_as_long_as_it_is_set() {
    let mut line = Gated::new();
    line.memory.set(960);
    line.park(1);
    line.advance(3_600_000);
    line.expect_none();
}

#[test]
fn a_dispatcher_holds_jobs_on_memory_and_its_orchestrators_never() {
    let memory = ScriptedMemory::new(1_000);
    let clock = ManualClock::new();
    let dispatcher = JobDispatcher::builder()
        .clock(Arc::new(clock.clone()))
        .memory(memory.clone())
        .memory_progress(false)
        .build()
        .unwrap();
    dispatcher.start().unwrap();
    let workflow = Workflow::new("alice", "memory").unwrap();
    let slots = gate("slots", 4);
    memory.set(990);
    let free = job_fn(JobRequirements::none, |_, _| Ok(1));
    assert_eq!(
        *dispatcher.submit(&workflow, free).unwrap().get().unwrap(),
        1
    );
    let permit = Arc::clone(&slots);
    let holds = job_fn(
        move || JobRequirements::none().permit(&permit),
        |_, _| Ok(2),
    );
    let held = dispatcher.submit(&workflow, holds).unwrap();
    while dispatcher.admission().queue_len() == 0 {
        thread::yield_now();
    }
    testing::quiesce(&dispatcher);
    assert_eq!(dispatcher.admission().memory().unwrap().held, 1);
    memory.set(100);
    clock.advance(ms(2_000));
    assert_eq!(*held.get().unwrap(), 2);
    dispatcher.shutdown(Duration::from_secs(1)).unwrap();

    let without = JobDispatcher::builder()
        .without_memory_gate()
        .build()
        .unwrap();
    assert!(without.admission().memory().is_none());
}
