//! The allocator of plugins: small blocks come from pools, one for each size.
//!
//! A transform makes and drops many small values for each record: the record's own strings, keys, nodes of maps. An allocator
//! for all purposes looks for a good place for each and joins what is dropped with its neighbours, which was a quarter of the
//! time of a transform with `serde_json`. Here a dropped block waits in a list for the next value of its size, and a fresh one
//! is cut from a chunk. What is larger than 1 KiB goes to the standard library's allocator.
//!
//! The first chunk is what the linker has left of the memory that the module begins with: an instance that has little to do
//! needs no more. Later ones are large: each time that memory grows, the host changes the protection of pages.
//!
//! Memory of small blocks is never given back to others, so a plugin holds at most the most that it ever had of each size. Its
//! instance has one thread, and in general ends with its batch.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;

/// Sizes of pools are apart by this, and blocks are aligned to it.
const STEP: usize = 16;
const SMALL_MAX: usize = 1024;
const POOLS: usize = SMALL_MAX / STEP;
const CHUNK: Layout = match Layout::from_size_align(128 * SMALL_MAX, STEP) {
    Ok(layout) => layout,
    Err(_) => panic!("the size fits"),
};

/// Pools in front of another allocator.
pub(crate) struct Pools<A> {
    inner: A,
    state: UnsafeCell<State>,
}

struct State {
    /// Dropped blocks of each size; each holds the address of the next one.
    free: [*mut u8; POOLS],
    /// What is left of the chunk that is being cut, a multiple of [`STEP`].
    rest: *mut u8,
    rest_bytes: usize,
    /// Whether a chunk was taken.
    has_begun: bool,
}

// SAFETY: without atomics there are no threads.
#[cfg(all(target_arch = "wasm32", not(target_feature = "atomics")))]
unsafe impl<A> Sync for Pools<A> {}

impl<A> Pools<A> {
    pub(crate) const fn new(inner: A) -> Self {
        let state = State {
            free: [ptr::null_mut(); POOLS],
            rest: ptr::null_mut(),
            rest_bytes: 0,
            has_begun: false,
        };
        Self { inner, state: UnsafeCell::new(state) }
    }
}

/// The pool of a block. `None` when it is large, has no size, or must be aligned to more than a pool's blocks are.
const fn pool_of(layout: Layout) -> Option<usize> {
    let pool = layout.size().wrapping_sub(1) / STEP;
    if pool < POOLS && layout.align() <= STEP { Some(pool) } else { None }
}

impl State {
    /// # Safety
    /// The block is of this pool and nobody uses it.
    const unsafe fn put(&mut self, block: *mut u8, pool: usize) {
        // SAFETY: a block has room for an address, and is aligned for one.
        unsafe { block.cast::<*mut u8>().write(self.free[pool]) };
        self.free[pool] = block;
    }

    /// At least [`SMALL_MAX`] bytes, unless there are none.
    fn chunk(&mut self, inner: &impl GlobalAlloc) -> (*mut u8, usize) {
        if !std::mem::replace(&mut self.has_begun, true) {
            let (left, bytes) = left_by_the_linker();
            if bytes >= SMALL_MAX {
                return (left, bytes);
            }
        }
        // SAFETY: the size of a chunk is not zero.
        (unsafe { inner.alloc(CHUNK) }, CHUNK.size())
    }

    #[inline(never)]
    fn cut(&mut self, pool: usize, inner: &impl GlobalAlloc) -> *mut u8 {
        let size = (pool + 1) * STEP;
        if self.rest_bytes < size {
            let (chunk, bytes) = self.chunk(inner);
            if chunk.is_null() {
                return chunk;
            }
            if self.rest_bytes > 0 {
                // SAFETY: it is smaller than a block, so there is a pool for it.
                unsafe { self.put(self.rest, self.rest_bytes / STEP - 1) };
            }
            (self.rest, self.rest_bytes) = (chunk, bytes);
        }
        let block = self.rest;
        // SAFETY: so many bytes are left.
        self.rest = unsafe { block.add(size) };
        self.rest_bytes -= size;
        block
    }
}

/// The end of the first memory, behind the stack and the data, in steps. The standard library's allocator does not know of it:
/// it has what it adds to the memory.
#[cfg(target_arch = "wasm32")]
fn left_by_the_linker() -> (*mut u8, usize) {
    unsafe extern "C" {
        static mut __heap_base: u8;
        static mut __heap_end: u8;
    }
    let base = &raw mut __heap_base;
    let bytes = (&raw mut __heap_end).addr().saturating_sub(base.addr());
    let first = base.align_offset(STEP);
    (base.wrapping_add(first), bytes.saturating_sub(first) / STEP * STEP)
}

#[cfg(not(target_arch = "wasm32"))]
fn left_by_the_linker() -> (*mut u8, usize) {
    (ptr::null_mut(), 0)
}

// SAFETY: a block of a pool has at least the size and alignment that was asked for, and belongs to one owner until it is put back;
// all others are the inner allocator's.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Pools<A> {
    // Not inlined, here and below: a call costs less than code that is a tenth larger.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let Some(pool) = pool_of(layout) else {
            // SAFETY: the caller's promises are passed on.
            return unsafe { self.inner.alloc(layout) };
        };
        // SAFETY: there is one thread, and nothing in here allocates from these pools.
        let state = unsafe { &mut *self.state.get() };
        let block = state.free[pool];
        if block.is_null() {
            return state.cut(pool, &self.inner);
        }
        // SAFETY: a block in the list holds the address of the next one.
        state.free[pool] = unsafe { block.cast::<*mut u8>().read() };
        block
    }

    #[inline(never)]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the same layout was given to `alloc`, so it is of this pool, or the inner allocator's.
        unsafe {
            match pool_of(layout) {
                Some(pool) => (*self.state.get()).put(block, pool),
                None => self.inner.dealloc(block, layout),
            }
        }
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's promises are passed on, and a block has the size that was asked for.
        unsafe {
            if pool_of(layout).is_none() {
                return self.inner.alloc_zeroed(layout);
            }
            let block = self.alloc(layout);
            if !block.is_null() {
                block.write_bytes(0, layout.size());
            }
            block
        }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller has made sure that the size fits with this alignment.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (pool_of(layout), pool_of(new)) {
            // SAFETY: the caller's promises are passed on.
            (None, None) => unsafe { self.inner.realloc(block, layout, size) },
            (Some(old), Some(new)) if old == new => block,
            // SAFETY: the new block belongs to nobody else and has room for what is copied.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    moved.copy_from_nonoverlapping(block, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::alloc::System;
    use std::cell::Cell;

    use super::*;

    /// Counts the bytes that are out, and refuses when there would be too many.
    struct Counted {
        bytes: Cell<usize>,
        most: usize,
    }

    // SAFETY: all blocks are the system's.
    unsafe impl GlobalAlloc for Counted {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            if self.bytes.get() + layout.size() > self.most {
                return ptr::null_mut();
            }
            self.bytes.set(self.bytes.get() + layout.size());
            // SAFETY: the caller's promises are passed on.
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
            self.bytes.set(self.bytes.get() - layout.size());
            // SAFETY: the caller's promises are passed on.
            unsafe { System.dealloc(block, layout) }
        }
    }

    fn pools(most: usize) -> Pools<Counted> {
        Pools::new(Counted { bytes: Cell::new(0), most })
    }

    /// A block that is filled with its own mark.
    struct Held {
        block: *mut u8,
        layout: Layout,
        mark: u8,
    }

    impl Held {
        fn new(block: *mut u8, layout: Layout, mark: u8) -> Self {
            assert!(!block.is_null() && block.addr().is_multiple_of(layout.align()));
            // SAFETY: it has this size.
            unsafe { block.write_bytes(mark, layout.size()) };
            Self { block, layout, mark }
        }

        fn check(&self, bytes: usize) {
            // SAFETY: at least so many were written.
            let content = unsafe { std::slice::from_raw_parts(self.block, bytes) };
            assert!(content.iter().all(|byte| *byte == self.mark), "{:?}", self.layout);
        }
    }

    #[test]
    fn no_block_is_of_two_owners_and_what_moves_keeps_its_content() {
        let pools = pools(usize::MAX);
        let mut held: Vec<Held> = Vec::new();
        let mut random = 1_u64;
        let mut next = |below: usize| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            usize::try_from(random >> 33).unwrap() % below
        };
        let sizes = [1, 15, 16, 17, 100, 255, 1008, 1009, 1023, 1024, 1025, 5000, 70_000];
        for step in 0..50_000_usize {
            let mark = u8::try_from(step % 251).unwrap();
            let size = if next(3) == 0 { sizes[next(sizes.len())] } else { 1 + next(200) };
            let layout = Layout::from_size_align(size, 1 << next(7)).unwrap();
            // SAFETY: blocks go back once, with the layout that they have.
            unsafe {
                match next(5) {
                    0 => held.push(Held::new(pools.alloc(layout), layout, mark)),
                    1 => {
                        let block = pools.alloc_zeroed(layout);
                        Held { block, layout, mark: 0 }.check(size);
                        held.push(Held::new(block, layout, mark));
                    }
                    2 if !held.is_empty() => {
                        let index = next(held.len());
                        let old = held.swap_remove(index);
                        let layout = Layout::from_size_align(size, old.layout.align()).unwrap();
                        let block = pools.realloc(old.block, old.layout, size);
                        Held { block, ..old }.check(old.layout.size().min(size));
                        held.push(Held::new(block, layout, mark));
                    }
                    _ if !held.is_empty() => {
                        let index = next(held.len());
                        let old = held.swap_remove(index);
                        old.check(old.layout.size());
                        pools.dealloc(old.block, old.layout);
                    }
                    _ => {}
                }
            }
        }
        held.iter().for_each(|held| held.check(held.layout.size()));
    }

    #[test]
    fn what_is_dropped_is_used_again_and_memory_stays_flat() {
        let pools = pools(usize::MAX);
        let batch = || {
            let layouts = (1..=64).map(|n| Layout::from_size_align(n * 17, 8).unwrap());
            // SAFETY: blocks go back once, with the layout that they have.
            let blocks: Vec<_> =
                layouts.map(|layout| (unsafe { pools.alloc(layout) }, layout)).collect();
            for (block, layout) in blocks {
                // SAFETY: as above.
                unsafe { pools.dealloc(block, layout) };
            }
            pools.inner.bytes.get()
        };
        let first = batch();
        assert!((0..1000).all(|_| batch() == first));
    }

    #[test]
    fn memory_that_is_refused_is_told_and_what_is_there_goes_on() {
        let pools = pools(CHUNK.size());
        let layout = Layout::from_size_align(1024, 16).unwrap();
        // SAFETY: blocks go back once, with the layout that they have.
        unsafe {
            let blocks = (0..CHUNK.size() / 1024).map(|_| pools.alloc(layout));
            let blocks: Vec<_> = blocks.collect();
            assert!(blocks.iter().all(|block| !block.is_null()));
            assert!(pools.alloc(layout).is_null() && pools.alloc_zeroed(layout).is_null());
            let first = Held::new(blocks[0], layout, 7);
            assert!(pools.realloc(first.block, layout, 5000).is_null());
            first.check(1024);
            pools.dealloc(blocks[1], layout);
            assert_eq!(pools.alloc(layout), blocks[1]);
        }
    }
}
