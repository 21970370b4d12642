// Renders a Helm chart as `helm template` does, with Go's text/template and sprig, which Helm is made of too.
//
//	render_chart -chart FOLDER [-name RELEASE] [-namespace NAME] [-values FILE] [-set KEY=VALUE] [-set-file KEY=FILE] [-notes]
//
// -values, -set and -set-file may be given more often; the later wins. With -values-only the merged values are written as
// JSON and nothing is rendered: whoever validates them against values.schema.json begins with that. What a chart of ours does
// not use is missing here: dependencies, hooks, tpl, and the escapes of --set.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

type object = map[string]interface{}

// Helm reads YAML by way of JSON, so every number is a float64 to a template.
func asHelmReads(value interface{}) interface{} {
	switch v := value.(type) {
	case object:
		for key, inner := range v {
			v[key] = asHelmReads(inner)
		}
	case []interface{}:
		for i, inner := range v {
			v[i] = asHelmReads(inner)
		}
	case int:
		return float64(v)
	}
	return value
}

func readValues(path string) (object, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	values := object{}
	if err := yaml.Unmarshal(text, &values); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return asHelmReads(values).(object), nil
}

// What `over` says wins, key by key; null takes a key away.
func merge(under, over object) object {
	for key, value := range over {
		inner, isMap := value.(object)
		base, baseIsMap := under[key].(object)
		switch {
		case value == nil:
			delete(under, key)
		case isMap && baseIsMap:
			under[key] = merge(base, inner)
		default:
			under[key] = value
		}
	}
	return under
}

func set(values object, name string, value interface{}) {
	keys := strings.Split(name, ".")
	for _, key := range keys[:len(keys)-1] {
		inner, isMap := values[key].(object)
		if !isMap {
			inner = object{}
			values[key] = inner
		}
		values = inner
	}
	values[keys[len(keys)-1]] = value
}

// The type that --set gives a value: a whole number, a truth value, null, or a text.
func typed(text string) interface{} {
	switch text {
	case "true":
		return true
	case "false":
		return false
	case "null":
		return nil
	}
	if number, err := strconv.ParseInt(text, 10, 64); err == nil && text == strconv.FormatInt(number, 10) {
		return float64(number)
	}
	return text
}

type files struct{ folder string }

// Get is empty for a file that the chart does not have, as Helm's is.
func (f files) Get(name string) string {
	text, err := os.ReadFile(filepath.Join(f.folder, name))
	if err != nil {
		return ""
	}
	return string(text)
}

func toYAML(value interface{}) (string, error) {
	var out bytes.Buffer
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	err := encoder.Encode(value)
	return strings.TrimSuffix(out.String(), "\n"), err
}

func functions(all *template.Template) template.FuncMap {
	functions := sprig.TxtFuncMap()
	delete(functions, "env") // Helm takes them away
	delete(functions, "expandenv")
	functions["toYaml"] = toYAML
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	return functions
}

type options struct {
	chart, name, namespace string
	valuesOnly, notes      bool
	layers                 []func(object) error
}

func parseOptions() *options {
	o := &options{}
	flag.StringVar(&o.chart, "chart", "", "folder of the chart")
	flag.StringVar(&o.name, "name", "tessera", "name of the release")
	flag.StringVar(&o.namespace, "namespace", "default", "namespace of the release")
	flag.BoolVar(&o.valuesOnly, "values-only", false, "write the merged values as JSON")
	flag.BoolVar(&o.notes, "notes", false, "write NOTES.txt")
	flag.Func("values", "file of values", func(path string) error {
		o.layers = append(o.layers, func(values object) error {
			read, err := readValues(path)
			merge(values, read)
			return err
		})
		return nil
	})
	assignment := func(convert func(string) (interface{}, error)) func(string) error {
		return func(text string) error {
			name, value, found := strings.Cut(text, "=")
			if !found {
				return fmt.Errorf("%q is no KEY=VALUE", text)
			}
			o.layers = append(o.layers, func(values object) error {
				converted, err := convert(value)
				set(values, name, converted)
				return err
			})
			return nil
		}
	}
	flag.Func("set", "a value", assignment(func(text string) (interface{}, error) { return typed(text), nil }))
	flag.Func("set-file", "a value from a file", assignment(func(path string) (interface{}, error) {
		text, err := os.ReadFile(path)
		return string(text), err
	}))
	flag.Parse()
	return o
}

func render(o *options, values object) error {
	chart, err := readValues(filepath.Join(o.chart, "Chart.yaml"))
	if err != nil {
		return err
	}
	context := object{
		"Values": values,
		"Chart":  object{"Name": chart["name"], "Version": chart["version"], "AppVersion": chart["appVersion"]},
		"Release": object{"Name": o.name, "Namespace": o.namespace, "Service": "Helm", "IsInstall": true, "IsUpgrade": false,
			"Revision": 1},
		"Files": files{o.chart},
	}
	paths, err := filepath.Glob(filepath.Join(o.chart, "templates", "*"))
	if err != nil {
		return err
	}
	sort.Strings(paths)
	all := template.New("chart").Option("missingkey=zero")
	all.Funcs(functions(all))
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if _, err := all.New(filepath.Base(path)).Parse(string(text)); err != nil {
			return err
		}
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") || (name == "NOTES.txt") != o.notes {
			continue
		}
		var out strings.Builder
		if err := all.ExecuteTemplate(&out, name, context); err != nil {
			return err
		}
		text := strings.ReplaceAll(out.String(), "<no value>", "")
		if o.notes {
			fmt.Print(text)
		} else if strings.TrimSpace(text) != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", name, text)
		}
	}
	return nil
}

func run() error {
	o := parseOptions()
	values, err := readValues(filepath.Join(o.chart, "values.yaml"))
	if err != nil {
		return err
	}
	for _, layer := range o.layers {
		if err := layer(values); err != nil {
			return err
		}
	}
	if o.valuesOnly {
		return json.NewEncoder(os.Stdout).Encode(values)
	}
	return render(o, values)
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "render_chart:", err)
		os.Exit(1)
	}
}
