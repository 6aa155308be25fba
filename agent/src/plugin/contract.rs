//! `wit/plugin.wit` as far as an inspection needs it: the interfaces of plugins and the signatures of their functions.

/// The version of the package that this agent offers.
pub(super) const VERSION: &str = "0.1.0";

/// One interface of the package `waystation:plugin`.
#[derive(Debug)]
pub(super) struct Interface {
    pub(super) name: &'static str,
    /// Name and signature; named types are replaced by what they stand for.
    pub(super) functions: &'static [(&'static str, &'static str)],
}

impl Interface {
    pub(super) fn full_name(&self) -> String {
        format!("waystation:plugin/{}@{VERSION}", self.name)
    }
}

/// Whether a full name is that of this interface, of whatever version.
pub(super) fn is(full_name: &str, interface: &str) -> bool {
    full_name
        .strip_prefix("waystation:plugin/")
        .and_then(|rest| rest.strip_prefix(interface))
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('@'))
}

macro_rules! header {
    () => {
        "list<record<name: string, value: string>>"
    };
}

macro_rules! place {
    () => {
        "record<agent: string, source: string, pipeline: string, sink: string>"
    };
}

macro_rules! draft {
    () => {
        concat!(
            "record<time: option<s64>, subject: string, headers: ",
            header!(),
            ", payload: list<u8>>"
        )
    };
}

/// What a transform exports.
pub(super) const TRANSFORM: Interface = Interface {
    name: "transform",
    functions: &[
        ("init", concat!("func(config: string, place: ", place!(), ") -> result<ok, err: string>")),
        (
            "process",
            concat!(
                "func(now: s64, records: list<record<seq: u64, time: s64, subject: string, headers: ",
                header!(),
                ", payload: list<u8>>>) -> result<ok: list<variant<keep, drop, payload: list<u8>, replace: ",
                draft!(),
                ", split: list<",
                draft!(),
                ">, reject: string>>, err: variant<retryable: string, permanent: string>>"
            ),
        ),
    ],
};

/// What a transform with a timer exports beside that.
pub(super) const TICKS: Interface = Interface {
    name: "ticks",
    functions: &[(
        "tick",
        concat!(
            "func(now: s64) -> result<ok: list<",
            draft!(),
            ">, err: variant<retryable: string, permanent: string>>"
        ),
    )],
};

macro_rules! sink_error {
    () => {
        "variant<unreachable: string, retryable: record<reason: string, retry-after-ms: option<u32>>, rejected: string, conflict: string>"
    };
}

/// What a sink exports.
pub(super) const SINK: Interface = Interface {
    name: "sink",
    functions: &[
        ("init", concat!("func(config: string, place: ", place!(), ") -> result<ok, err: string>")),
        ("probe", concat!("func(now: s64) -> result<ok, err: ", sink_error!(), ">")),
        (
            "deliver",
            concat!(
                "func(batch: record<id: string, attempt: u32, now: s64, deadline-ms: u32, records: list<record<id: string, seq: u64, time: s64, subject: string, headers: ",
                header!(),
                ", payload: list<u8>>>>) -> result<ok: list<record<index: u32, reason: string>>, err: ",
                sink_error!(),
                ">"
            ),
        ),
    ],
};

/// What only a sink may import.
pub(super) const HTTP: Interface = Interface {
    name: "http",
    functions: &[(
        "send",
        concat!(
            "func(request: record<method: string, url: string, headers: ",
            header!(),
            ", body: list<u8>>) -> result<ok: record<status: u16, headers: ",
            header!(),
            ", body: list<u8>>, err: variant<denied: string, timeout: string, network: string>>"
        ),
    )],
};

/// What every plugin may import.
pub(super) const IMPORTS: &[Interface] = &[
    Interface { name: "types", functions: &[] },
    Interface {
        name: "log",
        functions: &[("log", "func(level: enum<debug, info, warn, error>, message: string)")],
    },
    Interface {
        name: "state",
        functions: &[
            ("get", "func(key: string) -> option<list<u8>>"),
            ("set", "func(key: string, value: list<u8>) -> result<ok, err: string>"),
            ("delete", "func(key: string)"),
            ("keys", "func(prefix: string, after: string, limit: u32) -> list<string>"),
        ],
    },
];
