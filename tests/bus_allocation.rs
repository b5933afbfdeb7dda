//! Publishing to nobody costs no allocation (`BUS-8`). A file of its own: it counts every
//! allocation of its process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::SystemTime;

use nucleo_runtime::SystemClock;
use nucleo_runtime::events::{Event, EventFilter, EventKind, MessageBus};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: hands every call on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that the system's allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above; the pointer came from the same allocator.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(act: impl FnOnce()) -> usize {
    let before = ALLOCATIONS.get();
    act();
    ALLOCATIONS.get() - before
}

#[test]
fn publishing_to_nobody_allocates_nothing() {
    let event = Event::scheduler_error("x", SystemTime::UNIX_EPOCH);
    let publish = |bus: &MessageBus| {
        let event = event.clone();
        allocations(|| bus.publish(event))
    };
    let bus = MessageBus::standalone(Arc::new(SystemClock));
    assert_eq!(publish(&bus), 0);
    bus.start();
    assert_eq!(publish(&bus), 0);
    let other = |filter| {
        let observer = |_: &Arc<Event>| {};
        bus.subscribe(filter, Arc::new(observer)).unwrap()
    };
    let _kind = other(EventFilter::all().kind(EventKind::JobFailed));
    assert_eq!(publish(&bus), 0);
    let _flow = other(EventFilter::all().workflow("w-1"));
    assert_eq!(publish(&bus), 0);
    let _all = other(EventFilter::all());
    assert!(publish(&bus) > 0);
}
