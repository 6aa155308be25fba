"""my-plugin: drops bad readings, converts °C to °F, and adds the site that the config names.

`wit_world` is made by componentize-py of the WIT; `componentize-py -d wit -w transform-plugin bindings .` writes it beside this
file, for your editor. There is no clock but `now`, and no randomness.
"""

import json

import wit_world.exports
from componentize_py_types import Err
from wit_world.exports.transform import (
    Outcome_Drop,
    Outcome_Payload,
    Outcome_Reject,
)

site = "plant"


class Transform(wit_world.exports.Transform):
    def init(self, config, place):
        """An error is shown to the operator, and the transform does not start."""
        global site
        given = json.loads(config)
        for key in given:
            if key != "site":
                raise Err(f'config: there is no key "{key}"')
        site = given.get("site", site)
        if not isinstance(site, str):
            raise Err("config.site must be a text")

    def process(self, now, records):
        """One outcome for each record, in the same order."""
        return [outcome(record.payload) for record in records]


def outcome(payload):
    try:
        reading = json.loads(payload)
    except (ValueError, RecursionError):
        reading = None
    if not isinstance(reading, dict):
        return Outcome_Reject("the payload is no JSON object")
    if reading.get("status") == "bad":
        return Outcome_Drop()
    celsius = reading.get("temperature_c")
    if isinstance(celsius, (int, float)) and not isinstance(celsius, bool):
        del reading["temperature_c"]
        reading["temperature_f"] = round(celsius * 1.8 + 32, 3)
    reading["site"] = site
    return Outcome_Payload(json.dumps(reading, ensure_ascii=False).encode())
