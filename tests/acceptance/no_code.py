"""Small simulators of two no-code tools: they carry out an imported file against a live server.

They are simulators: they know the parts of Power Automate's and n8n's formats that our files use, as their makers
document them, and nothing else. Neither tool itself runs here.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from tests.acceptance.http_shop import HttpShop


class PowerAutomate:
    """Calls the actions of a custom connector by the names that its maker sees."""

    def __init__(self, connector: dict[str, Any], shop: HttpShop, token: str = "") -> None:
        self._shop = shop
        self._token = token
        self._base = "" if connector["basePath"] == "/" else connector["basePath"]
        self.actions = {
            action["summary"]: (method.upper(), path, action)
            for path, methods in connector["paths"].items()
            for method, action in methods.items()
        }

    def __call__(self, name: str, **given: Any) -> dict[str, Any]:
        """An answer that is not described ends the flow, as it does there."""
        method, path, action = self.actions[name]
        query, body = [], None
        for parameter in action["parameters"]:
            if parameter["in"] == "body":
                body = self._body(parameter["schema"], given)
            else:
                value = given.pop(parameter["name"], parameter.get("default"))
                text = str(value).lower() if isinstance(value, bool) else quote(str(value), safe="")
                if parameter["in"] == "query":
                    query.append(f"{parameter['name']}={text}")
                path = path.replace(f"{{{parameter['name']}}}", text)
        assert not given, given
        heard = self._shop(method, f"{self._base}{path}?{'&'.join(query)}", body, token=self._token)
        assert str(heard.status) in action["responses"], (heard.status, heard.body)
        return dict(json.loads(heard.body))

    @staticmethod
    def _body(schema: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        known = schema["properties"]
        defaults = {name: field["default"] for name, field in known.items() if "default" in field}
        mine = {name: given.pop(name) for name in list(given) if name in known}
        assert set(schema.get("required", ())) <= mine.keys()
        return {**defaults, **mine}


class N8n:
    """Carries out a workflow node by node. `work` stands for what its maker puts into the middle."""

    def __init__(self, workflow: dict[str, Any], shop: HttpShop, token: str = "") -> None:
        self._nodes = {node["name"]: node for node in workflow["nodes"]}
        self._connections = workflow["connections"]
        self._shop = shop
        self._token = token
        self.visited: list[str] = []
        self.error = ""  # with which an execution was stopped

    def run(self, work: Any, *, lost: str = "", **fields: Any) -> list[str]:
        """From its trigger to its end. `fields` are what its maker set; the first answer to the node `lost` is lost."""
        self.visited, self._items, self._lost, self.error = [], {}, lost, ""
        name: str | None = next(n for n, node in self._nodes.items() if node["type"].endswith("Trigger"))
        item: Any = {}
        while name is not None:
            self.visited.append(name)
            item, output = self._carry_out(self._nodes[name], item, work, fields)
            self._items[name] = item
            outputs = self._connections.get(name, {"main": []})["main"]
            name = outputs[output][0]["node"] if output < len(outputs) else None
        return self.visited

    def _carry_out(self, node: dict[str, Any], item: Any, work: Any, fields: dict[str, Any]) -> tuple[Any, int]:
        kind, parameters = node["type"].removeprefix("n8n-nodes-base."), node["parameters"]
        if kind in ("set", "crypto"):
            return self._fields(kind, parameters, item, fields), 0
        if kind == "httpRequest":
            if node["name"] == self._lost:
                self._request(parameters, item)
                assert node["retryOnFail"], "the execution ends here"
            return self._request(parameters, item), 0
        if kind == "if":
            assert parameters["conditions"]["combinator"] == "and"
            return item, 0 if all(self._holds(one, item) for one in parameters["conditions"]["conditions"]) else 1
        if kind == "stopAndError":
            self.error = self._value(parameters["errorMessage"], item)
        if node.get("onError") == "continueErrorOutput":
            try:
                return work(item), 0
            except ValueError as error:
                return {"error": str(error)}, 1
        return item, 0

    @staticmethod
    def _fields(kind: str, parameters: dict[str, Any], item: Any, fields: dict[str, Any]) -> dict[str, Any]:
        if kind == "set":
            return {**{one["name"]: _typed(one) for one in parameters["assignments"]["assignments"]}, **fields}
        assert (parameters["action"], parameters["encodingType"]) == ("generate", "uuid")
        return {**item, parameters["dataPropertyName"]: str(uuid4())}

    def _holds(self, condition: dict[str, Any], item: Any) -> bool:
        """Strict: a value of another kind than the condition's ends the execution, as it does in n8n."""
        found, kind = self._value(condition["leftValue"], item), condition["operator"]["type"]
        assert type(found) is {"boolean": bool, "number": int, "string": str}[kind], (found, kind)
        if condition["operator"] == {"type": "boolean", "operation": "true", "singleValue": True}:
            return found is True
        assert condition["operator"]["operation"] == "notEquals"
        return bool(found != condition["rightValue"])

    def _request(self, parameters: dict[str, Any], item: Any) -> Any:
        url = str(self._value(parameters["url"], item)).removeprefix(self._shop.url)
        query = "&".join(f"{one['name']}={one['value']}" for one in parameters["queryParameters"]["parameters"])
        body = self._value(parameters["jsonBody"], item).encode()
        heard = self._shop(parameters["method"], f"{url}?{query}", body, token=self._token)
        assert 200 <= heard.status < 300, (heard.status, heard.body)  # n8n stops at anything else
        return json.loads(heard.body)

    def _value(self, text: str, item: Any) -> Any:
        """`=` begins an expression; `{{ … }}` in it is JavaScript, of which our file uses little."""
        if not text.startswith("="):
            return text
        whole = re.fullmatch(r"=\{\{(.*)\}\}", text, re.S)
        if whole and "}}" not in whole[1].replace("}) ", ""):
            return self._script(whole[1].strip(), item)
        return re.sub(r"\{\{(.*?)\}\}", lambda found: str(self._script(found[1].strip(), item)), text[1:])

    def _script(self, script: str, item: Any) -> Any:
        if found := re.fullmatch(r"encodeURIComponent\((.*)\)", script):
            return quote(str(self._script(found[1], item)), safe="!'()*~-._")
        if found := re.fullmatch(r"JSON\.stringify\(\{(.*)\}\)", script, re.S):
            pairs = (pair.split(":", 1) for pair in re.split(r",\s*(?=\w+:)", found[1].strip()))
            return json.dumps({name.strip(): self._script(value.strip(), item) for name, value in pairs})
        if found := re.fullmatch(r"\$\('([^']+)'\)\.item\.json\.(\w+)", script):
            return self._items[found[1]][found[2]]
        if found := re.fullmatch(r"\$json(?:\.(\w+))?", script):
            return item[found[1]] if found[1] else item
        return {"true": True, "false": False}.get(script, script.strip("'"))


def _typed(one: dict[str, Any]) -> Any:
    return json.loads(one["value"]) if one["type"] == "object" else one["value"]
