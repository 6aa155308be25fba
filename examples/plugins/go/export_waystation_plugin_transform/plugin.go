// my-plugin: drops bad readings, converts °C to °F, and adds the site that the config names.
//
// The clock stands still, and random numbers are the same every time: the time is now.

package export_waystation_plugin_transform

import (
	"encoding/json"
	"fmt"
	"math"

	. "wit_component/waystation_plugin_transform"

	wit "go.bytecodealliance.org/pkg/wit/types"
)

var site = json.RawMessage(`"plant"`)

// Init is called once. An error is shown to the operator, and the transform does not start.
func Init(config string, _ Place) wit.Result[wit.Unit, string] {
	var given map[string]json.RawMessage
	if err := json.Unmarshal([]byte(config), &given); err != nil {
		return wit.Err[wit.Unit](err.Error())
	}
	for key, value := range given {
		if key != "site" {
			return wit.Err[wit.Unit](fmt.Sprintf("config: there is no key %q", key))
		}
		var text string
		if json.Unmarshal(value, &text) != nil || string(value) == "null" {
			return wit.Err[wit.Unit]("config.site must be a text")
		}
		site = value
	}
	return wit.Ok[wit.Unit, string](wit.Unit{})
}

// Process gives one outcome for each record, in the same order.
func Process(_ int64, records []Record) wit.Result[[]Outcome, Error] {
	outcomes := make([]Outcome, len(records))
	for i, record := range records {
		outcomes[i] = outcome(record.Payload)
	}
	return wit.Ok[[]Outcome, Error](outcomes)
}

func outcome(payload []byte) Outcome {
	// Fields stay as they are written.
	var reading map[string]json.RawMessage
	if json.Unmarshal(payload, &reading) != nil || reading == nil {
		return MakeOutcomeReject("the payload is no JSON object")
	}
	if string(reading["status"]) == `"bad"` {
		return MakeOutcomeDrop()
	}
	var celsius *float64
	if json.Unmarshal(reading["temperature_c"], &celsius) == nil && celsius != nil {
		delete(reading, "temperature_c")
		fahrenheit := math.Round((*celsius*1.8+32)*1000) / 1000
		reading["temperature_f"], _ = json.Marshal(fahrenheit)
	}
	reading["site"] = site
	out, err := json.Marshal(reading)
	if err != nil {
		return MakeOutcomeReject(err.Error())
	}
	return MakeOutcomePayload(out)
}
