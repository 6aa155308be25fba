//! Stands in for WASI in a core module that is packed: answers what a language's runtime asks at its start, and nothing more.
//!
//! Plugins are not given WASI. Some toolchains import it all the same (Go always, C where a library function needs it), and
//! hardly ever call it. The stub is made for the module, with the functions that it imports: there are no arguments and no
//! environment, the clock stands still, random bytes are left as they are, no descriptor is open, and the end of the process
//! is a trap. So nothing that a plugin does can depend on the machine or the moment.

use wasm_encoder::{
    CodeSection, EntityType, ExportKind, ExportSection, Function, FunctionSection, ImportSection,
    MemArg, MemoryType, Module, TypeSection, ValType,
};

/// The module that such imports name.
pub(super) const MODULE: &str = "wasi_snapshot_preview1";

/// What a function of the stub does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Does {
    /// Says that all went well, and touches nothing.
    Nothing,
    /// Writes a zero of four bytes where each of these parameters points.
    Zeros(&'static [u32]),
    /// Writes the time at which the clock stands, eight bytes, where this parameter points.
    Time(u32),
    /// Answers with an error number.
    Error(i32),
    /// Touches nothing, and answers nothing.
    Silence,
    Trap,
}

/// Where the clock stands, and what it counts in. Go's runtime refuses to begin at zero.
const TIME_NS: i64 = 1_000_000_000;

/// `EBADF`: no descriptor is open.
const BADF: Does = Does::Error(8);
/// `ENOSYS`.
const NOSYS: Does = Does::Error(52);

/// Name, parameters (`i` for 32 bits, `I` for 64), and what it does. All but the last two return an error number.
const FUNCTIONS: [(&str, &str, Does); 47] = [
    ("args_get", "ii", Does::Nothing),
    ("args_sizes_get", "ii", Does::Zeros(&[0, 1])),
    ("environ_get", "ii", Does::Nothing),
    ("environ_sizes_get", "ii", Does::Zeros(&[0, 1])),
    ("clock_res_get", "ii", Does::Time(1)),
    ("clock_time_get", "iIi", Does::Time(2)),
    ("fd_advise", "iIIi", BADF),
    ("fd_allocate", "iII", BADF),
    ("fd_close", "i", BADF),
    ("fd_datasync", "i", BADF),
    ("fd_fdstat_get", "ii", BADF),
    ("fd_fdstat_set_flags", "ii", BADF),
    ("fd_fdstat_set_rights", "iII", BADF),
    ("fd_filestat_get", "ii", BADF),
    ("fd_filestat_set_size", "iI", BADF),
    ("fd_filestat_set_times", "iIIi", BADF),
    ("fd_pread", "iiiIi", BADF),
    ("fd_prestat_get", "ii", BADF),
    ("fd_prestat_dir_name", "iii", BADF),
    ("fd_pwrite", "iiiIi", BADF),
    ("fd_read", "iiii", BADF),
    ("fd_readdir", "iiiIi", BADF),
    ("fd_renumber", "ii", BADF),
    ("fd_seek", "iIii", BADF),
    ("fd_sync", "i", BADF),
    ("fd_tell", "ii", BADF),
    ("fd_write", "iiii", BADF),
    ("path_create_directory", "iii", BADF),
    ("path_filestat_get", "iiiii", BADF),
    ("path_filestat_set_times", "iiiiIIi", BADF),
    ("path_link", "iiiiiii", BADF),
    ("path_open", "iiiiiIIii", BADF),
    ("path_readlink", "iiiiii", BADF),
    ("path_remove_directory", "iii", BADF),
    ("path_rename", "iiiiii", BADF),
    ("path_symlink", "iiiii", BADF),
    ("path_unlink_file", "iii", BADF),
    ("poll_oneoff", "iiii", NOSYS),
    ("proc_raise", "i", NOSYS),
    ("sched_yield", "", Does::Nothing),
    ("random_get", "ii", Does::Nothing),
    ("sock_accept", "iii", NOSYS),
    ("sock_recv", "iiiiii", NOSYS),
    ("sock_send", "iiiii", NOSYS),
    ("sock_shutdown", "ii", NOSYS),
    ("proc_exit", "i", Does::Trap),
    // No function of WASI: Go's bindings tell the usual adapter to stop its clock, and here it always stands.
    ("adapter_monotonic_clock_set_paused", "i", Does::Silence),
];

/// Whether the stub has a function of this name.
pub(super) fn has(name: &str) -> bool {
    FUNCTIONS.iter().any(|(known, ..)| *known == name)
}

/// A core module that exports the functions of these names; those that it does not have are left out.
pub(super) fn adapter(names: &[&str]) -> Vec<u8> {
    let mut types = TypeSection::new();
    let mut imports = ImportSection::new();
    let mut functions = FunctionSection::new();
    let mut exports = ExportSection::new();
    let mut code = CodeSection::new();
    // The memory is that of the module which asks.
    imports.import("env", "memory", EntityType::Memory(MEMORY));
    let wanted = FUNCTIONS.iter().filter(|(name, ..)| names.contains(name));
    for (index, (name, params, does)) in (0..).zip(wanted) {
        let value = |param: &u8| if *param == b'I' { ValType::I64 } else { ValType::I32 };
        let results = !matches!(does, Does::Trap | Does::Silence);
        let results = results.then_some(ValType::I32);
        types.ty().function(params.as_bytes().iter().map(value), results);
        functions.function(index);
        exports.export(name, ExportKind::Func, index);
        code.function(&body(*does));
    }
    let mut module = Module::new();
    module.section(&types).section(&imports).section(&functions).section(&exports).section(&code);
    module.finish()
}

const MEMORY: MemoryType =
    MemoryType { minimum: 0, maximum: None, memory64: false, shared: false, page_size_log2: None };

fn body(does: Does) -> Function {
    let mut body = Function::new([]);
    let mut code = body.instructions();
    let at = |align| MemArg { offset: 0, align, memory_index: 0 };
    match does {
        Does::Nothing => {
            code.i32_const(0);
        }
        Does::Zeros(pointers) => {
            for pointer in pointers {
                code.local_get(*pointer).i32_const(0).i32_store(at(2));
            }
            code.i32_const(0);
        }
        Does::Time(pointer) => {
            code.local_get(pointer).i64_const(TIME_NS).i64_store(at(3)).i32_const(0);
        }
        Does::Error(number) => {
            code.i32_const(number);
        }
        Does::Silence => {}
        Does::Trap => {
            code.unreachable();
        }
    }
    code.end();
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stub_of_all_functions_is_a_module_and_small() {
        let all: Vec<_> = FUNCTIONS.iter().map(|(name, ..)| *name).collect();
        let stub = adapter(&all);
        wasmparser::Validator::new().validate_all(&stub).unwrap();
        assert!(stub.len() < 2048, "{} bytes", stub.len());
        let some =
            adapter(&["proc_exit", "fd_write", "args_sizes_get", "clock_time_get", "nothing"]);
        wasmparser::Validator::new().validate_all(&some).unwrap();
        assert!(some.len() < 256, "{} bytes", some.len());
        assert!(has("poll_oneoff") && !has("poll"));
    }
}
