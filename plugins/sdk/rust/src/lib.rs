//! Write a Waystation plugin in Rust: implement [`Transform`] and name the type in [`export_transform!`].
//!
//! ```
//! use waystation_plugin::{Outcome, Place, Record, Transform};
//!
//! struct OnlyLarge;
//!
//! impl Transform for OnlyLarge {
//!     type Config = waystation_plugin::NoConfig;
//!
//!     fn new(_config: Self::Config, _place: Place) -> Result<Self, String> {
//!         Ok(Self)
//!     }
//!
//!     fn record(&mut self, _now: i64, record: Record) -> Outcome {
//!         if record.payload.len() > 100 { Outcome::Keep } else { Outcome::Drop }
//!     }
//! }
//!
//! waystation_plugin::export_transform!(OnlyLarge);
//! ```
//!
//! The crate type is `cdylib`, the target `wasm32-unknown-unknown`. Everything works on the host's own target too, so that
//! `cargo test` can test a plugin: there [`log`] prints and [`state`] keeps its values in the thread. The feature `testing`
//! adds the module `testing`, for `[dev-dependencies]`.
//!
//! The feature `pools`, on by default, brings an allocator that suits plugins; a crate that has a `#[global_allocator]` of its own
//! turns it off.
//!
//! A plugin may say what it is and what config it takes, so that tools can help without running it on data:
//! `export_transform!(OnlyLarge, about!().config_schema(include_str!("../schema.json")))`.
//!
//! What has to happen also when no record comes is done by [`Ticks`], with [`export_windowed!`]. Plugins that deliver are in
//! [`sink`].

mod about;
pub mod json;
mod key;
pub mod log;
#[cfg(any(test, all(target_arch = "wasm32", feature = "pools")))]
mod pools;
pub mod sink;
pub mod state;
#[cfg(feature = "testing")]
pub mod testing;
pub mod time;

/// Of the world with ticks; a plugin without them exports from here by [`transform_world`].
#[doc(hidden)]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../../wit",
        world: "windowed-plugin",
        pub_export_macro: true,
        export_macro_name: "export",
        default_bindings_module: "waystation_plugin::bindings",
    });
}

/// A world of its own, so that only a plugin that has something to say exports the interface.
#[doc(hidden)]
pub mod bindings_about {
    wit_bindgen::generate!({
        inline: "package waystation:sdk; world about-plugin { export waystation:plugin/about@0.1.0; }",
        path: "../../../wit",
        world: "waystation:sdk/about-plugin",
        pub_export_macro: true,
        export_macro_name: "export",
        default_bindings_module: "waystation_plugin::bindings_about",
    });
}

/// The world of sinks, with the types of the others.
#[doc(hidden)]
pub mod bindings_sink {
    wit_bindgen::generate!({
        path: "../../../wit",
        world: "sink-plugin",
        pub_export_macro: true,
        export_macro_name: "export",
        default_bindings_module: "waystation_plugin::bindings_sink",
        with: {
            "waystation:plugin/types@0.1.0": crate::bindings::waystation::plugin::types,
            "waystation:plugin/log@0.1.0": crate::bindings::waystation::plugin::log,
            "waystation:plugin/state@0.1.0": crate::bindings::waystation::plugin::state,
        },
    });
}

use std::cell::RefCell;

pub use about::About;
pub use bindings::exports::waystation::plugin::transform::{Error, Outcome};
pub use bindings::waystation::plugin::types::{Draft, Header, Place, Record};
pub use key::{By, stable_hash};
use sink::{Batch, Rejection, Sink, SinkError};
#[doc(hidden)]
pub use waystation_plugin_transform_world as transform_world;

#[cfg(all(target_arch = "wasm32", feature = "pools"))]
#[global_allocator]
static ALLOCATOR: pools::Pools<std::alloc::System> = pools::Pools::new(std::alloc::System);

/// The config of a plugin that takes none; any key in it is an error.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoConfig;

impl<'de> serde::Deserialize<'de> for NoConfig {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Empty;

        impl<'de> serde::de::Visitor<'de> for Empty {
            type Value = NoConfig;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("no config")
            }

            fn visit_map<M: serde::de::MapAccess<'de>>(
                self,
                mut map: M,
            ) -> Result<NoConfig, M::Error> {
                match map.next_key::<String>()? {
                    None => Ok(NoConfig),
                    Some(key) => Err(serde::de::Error::unknown_field(&key, &[])),
                }
            }
        }

        deserializer.deserialize_map(Empty)
    }
}

/// Turns records into records. Same input, same state: same output.
pub trait Transform: Sized {
    /// The `config` table of the transform. Let it deny unknown fields, so that a typing error is found when the agent starts.
    type Config: serde::de::DeserializeOwned;

    /// Makes an instance. There may be one for each batch: keep it cheap.
    ///
    /// # Errors
    /// The text is shown to the operator, and the transform does not start.
    fn new(config: Self::Config, place: Place) -> Result<Self, String>;

    /// What becomes of one record. `now`, nanoseconds since 1970, is the only clock there is.
    fn record(&mut self, now: i64, record: Record) -> Outcome;

    /// One outcome for each record, in the same order. Write your own to look at several records at once or to fail a whole call.
    ///
    /// # Errors
    /// When the whole call failed. For one bad record there is [`Outcome::Reject`].
    fn process(&mut self, now: i64, records: Vec<Record>) -> Result<Vec<Outcome>, Error> {
        Ok(records.into_iter().map(|record| self.record(now, record)).collect())
    }
}

/// For transforms with windows or time-outs: called every `tick` of the transform's config, between batches.
///
/// What it changes in [`state`] is stored together with what it returns, or neither is. There may be another instance for each
/// call, so what has to be known at a tick is kept in the state.
///
/// ```
/// use waystation_plugin::{Draft, Error, Outcome, Place, Record, Ticks, Transform, state};
///
/// /// Tells at each tick how many records there were.
/// struct Counter;
///
/// impl Transform for Counter {
///     type Config = waystation_plugin::NoConfig;
///
///     fn new(_config: Self::Config, _place: Place) -> Result<Self, String> {
///         Ok(Self)
///     }
///
///     fn record(&mut self, _now: i64, _record: Record) -> Outcome {
///         let count = state::get("count").and_then(|bytes| bytes.try_into().ok());
///         let count = count.map_or(0, u64::from_le_bytes) + 1;
///         match state::set("count", &count.to_le_bytes()) {
///             Ok(()) => Outcome::Drop,
///             Err(limit) => Outcome::Reject(limit),
///         }
///     }
/// }
///
/// impl Ticks for Counter {
///     fn tick(&mut self, _now: i64) -> Result<Vec<Draft>, Error> {
///         let Some(bytes) = state::get("count") else { return Ok(Vec::new()) };
///         state::delete("count");
///         let count = bytes.try_into().map_or(0, u64::from_le_bytes);
///         let (subject, payload) = ("plant.count".to_owned(), count.to_string().into_bytes());
///         Ok(vec![Draft { time: None, subject, headers: Vec::new(), payload }])
///     }
/// }
///
/// waystation_plugin::export_windowed!(Counter, waystation_plugin::about!());
/// ```
pub trait Ticks: Transform {
    /// The records that are due. One without a time has that of the tick, which is `now`, nanoseconds since 1970.
    ///
    /// # Errors
    /// When the whole call failed: nothing that it has changed is stored.
    fn tick(&mut self, now: i64) -> Result<Vec<Draft>, Error>;
}

/// Holds the one instance of a component. Used by [`export_transform!`].
#[doc(hidden)]
pub struct Slot<T>(RefCell<Option<T>>);

impl<T> Slot<T> {
    #[doc(hidden)]
    #[must_use]
    pub const fn empty() -> Self {
        Self(RefCell::new(None))
    }

    /// Reads the config, and makes the instance of it.
    fn fill<C: serde::de::DeserializeOwned>(
        &self,
        config: &str,
        make: impl FnOnce(C) -> Result<T, String>,
    ) -> Result<(), String> {
        #[cfg(target_arch = "wasm32")]
        std::panic::set_hook(Box::new(say_where));
        let mut deserializer = serde_json::Deserializer::from_str(config);
        let config = serde_path_to_error::deserialize(&mut deserializer).map_err(|error| {
            // The key is what the operator looks for; of a mistake in the table itself there is none.
            let key = error.path().to_string();
            let reason = json::reason(error.inner());
            if key == "." { format!("config: {reason}") } else { format!("config.{key}: {reason}") }
        })?;
        *self.0.borrow_mut() = Some(make(config)?);
        Ok(())
    }
}

impl<T: Sink> Slot<T> {
    #[doc(hidden)]
    pub fn init_sink(&self, config: &str, place: Place) -> Result<(), String> {
        self.fill(config, |config| T::new(config, place))
    }

    #[doc(hidden)]
    pub fn probe(&self, now: i64) -> Result<(), SinkError> {
        match &mut *self.0.borrow_mut() {
            Some(plugin) => plugin.probe(now),
            None => Err(SinkError::Unreachable("probe was called before init".to_owned())),
        }
    }

    #[doc(hidden)]
    pub fn deliver(&self, batch: Batch) -> Result<Vec<Rejection>, SinkError> {
        match &mut *self.0.borrow_mut() {
            Some(plugin) => plugin.deliver(batch),
            None => Err(SinkError::Unreachable("deliver was called before init".to_owned())),
        }
    }
}

impl<T: Transform> Slot<T> {
    #[doc(hidden)]
    pub fn init(&self, config: &str, place: Place) -> Result<(), String> {
        self.fill(config, |config| T::new(config, place))
    }

    #[doc(hidden)]
    pub fn process(&self, now: i64, records: Vec<Record>) -> Result<Vec<Outcome>, Error> {
        match &mut *self.0.borrow_mut() {
            Some(plugin) => plugin.process(now, records),
            None => Err(Error::Permanent("process was called before init".to_owned())),
        }
    }

    #[doc(hidden)]
    pub fn tick(&self, now: i64) -> Result<Vec<Draft>, Error>
    where
        T: Ticks,
    {
        match &mut *self.0.borrow_mut() {
            Some(plugin) => plugin.tick(now),
            None => Err(Error::Permanent("tick was called before init".to_owned())),
        }
    }
}

/// Says where a plugin has panicked, and not why: a panic's message often holds what the record held.
#[cfg(target_arch = "wasm32")]
fn say_where(panic: &std::panic::PanicHookInfo<'_>) {
    if let Some(place) = panic.location() {
        log::error(&format!("the plugin panicked at {place}"));
    }
}

/// Makes the crate a component that exports this [`Transform`], and what it says [`about!`] itself, if it does.
#[macro_export]
macro_rules! export_transform {
    ($plugin:ty, $about:expr $(,)?) => {
        $crate::export_transform!($plugin);
        $crate::export_about!($about);
    };
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            $crate::export_interface_transform!($plugin);
    $crate::transform_world::export!(Exported with_types_in $crate::bindings);
        };

        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            // Elsewhere there is nobody to export to, but the type is checked all the same.
            const fn is_a_transform<T: $crate::Transform>() {}
            is_a_transform::<$plugin>();
        };
    };
}

/// As [`export_transform!`], with the type's [`Ticks`].
#[macro_export]
macro_rules! export_windowed {
    ($plugin:ty, $about:expr $(,)?) => {
        $crate::export_windowed!($plugin);
        $crate::export_about!($about);
    };
    ($plugin:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            $crate::export_interface_transform!($plugin);

            impl $crate::bindings::exports::waystation::plugin::ticks::Guest for Exported {
                fn tick(now: i64) -> Result<Vec<$crate::Draft>, $crate::Error> {
                    SLOT.with(|slot| slot.tick(now))
                }
            }

    $crate::bindings::export!(Exported with_types_in $crate::bindings);
        };

        #[cfg(not(target_arch = "wasm32"))]
        const _: () = {
            const fn ticks<T: $crate::Ticks>() {}
            ticks::<$plugin>();
        };
    };
}

/// The slot of the one instance, and `transform` made of it.
#[doc(hidden)]
#[macro_export]
macro_rules! export_interface_transform {
    ($plugin:ty) => {
        use $crate::bindings::exports::waystation::plugin::transform as interface;

        ::std::thread_local! {
            static SLOT: $crate::Slot<$plugin> = const { $crate::Slot::empty() };
        }

        struct Exported;

        impl interface::Guest for Exported {
            fn init(config: String, place: interface::Place) -> Result<(), String> {
                SLOT.with(|slot| slot.init(&config, place))
            }

            fn process(
                now: i64,
                records: Vec<interface::Record>,
            ) -> Result<Vec<interface::Outcome>, interface::Error> {
                SLOT.with(|slot| slot.process(now, records))
            }
        }
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! export_about {
    ($about:expr) => {
        const _: $crate::About = $about;

        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings_about::exports::waystation::plugin::about as interface;

            struct Exported;

            impl interface::Guest for Exported {
                fn describe() -> interface::Description {
                    const ABOUT: $crate::About = $about;
                    ABOUT.describe()
                }
            }

    $crate::bindings_about::export!(Exported with_types_in $crate::bindings_about);
        };
    };
}
