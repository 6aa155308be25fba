//! A guest of the `sink-plugin` world, for tests that use it where a transform belongs.

#[cfg(target_arch = "wasm32")]
mod guest {
    wit_bindgen::generate!({ path: "../../wit", world: "sink-plugin" });

    use exports::waystation::plugin::sink::{Batch, Error, Guest, Place, Rejection};

    struct Sink;

    impl Guest for Sink {
        fn init(_config: String, _place: Place) -> Result<(), String> {
            Ok(())
        }

        fn probe(_now: i64) -> Result<(), Error> {
            Ok(())
        }

        fn deliver(batch: Batch) -> Result<Vec<Rejection>, Error> {
            let request = waystation::plugin::http::Request {
                method: "POST".to_owned(),
                url: "https://hooks.example.org/edge".to_owned(),
                headers: Vec::new(),
                body: batch.records.into_iter().flat_map(|record| record.payload).collect(),
            };
            match waystation::plugin::http::send(&request) {
                Ok(_) => Ok(Vec::new()),
                Err(_) => Err(Error::Unreachable("no answer".to_owned())),
            }
        }
    }

    export!(Sink);
}
