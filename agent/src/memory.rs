//! Keeps the allocator from holding on to memory that nobody uses.

/// Arenas of glibc's allocator; it would make eight for each core.
#[cfg(target_env = "gnu")]
const ARENAS_MAX: i32 = 2;

/// Bounds the arenas of glibc's allocator: each keeps what its threads have freed, and blocking threads come and go. With two
/// the whole job peaked at 34 instead of 45 MiB, at the same speed. Elsewhere it does nothing. Called once, before any thread
/// is started.
pub fn bound_arenas() {
    #[cfg(target_env = "gnu")]
    #[expect(unsafe_code, reason = "the allocator has no other way in")]
    // SAFETY: mallopt takes two numbers and no pointer; no other thread runs yet.
    let taken = unsafe { libc::mallopt(libc::M_ARENA_MAX, ARENAS_MAX) };
    #[cfg(target_env = "gnu")]
    if taken != 1 {
        tracing::debug!("The allocator takes no bound on its arenas");
    }
}
