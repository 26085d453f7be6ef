"""Phrasings of questions as people type them: by kind, with some kept back for evaluation.

`QUESTIONS` of `questions.py` are what the shipped reader was trained with, and stay as they are. These here are richer, and
drawings use them by `say`: terse and polite ones, commands, misspelt ones, and several words for the same thing.
Phrasings in `held_out`, and things in `HELD_OUT_FRAMES`, are never used in training.
"""

import random
import re
from dataclasses import dataclass, field
from functools import lru_cache

from arr_coc.training.documents import questions
from arr_coc.training.documents.page import PageQuestion
from arr_coc.training.documents.questions import NOT_FOUND

FRAMES = (
    *questions.FRAMES,
    *questions._split(
        "whats the {thing} | what is the {thing} | Could you please tell me the {thing}? | Do you know the {thing}? | "
        "Can you find the {thing} for me? | Get the {thing} | What {thing} does it show? | {thing}?? | "
        "Where does it say the {thing}? | Is there a {thing}, and what is it? | i need the {thing} pls | "
        "Which is the {thing}? | What would be the {thing}? | Look for the {thing} | Copy the {thing}. | "
        "Transcribe the {thing}."
    ),
)
HELD_OUT_FRAMES = questions._split(
    "Find the {thing}. | Let me know the {thing}. | I'd like the {thing}. | Report the {thing}. | "
    "What have we got as the {thing}? | Point me to the {thing}. | my question is: what is the {thing}"
)


@dataclass(frozen=True)
class Phrasings:
    """Phrasings of one kind: `asked` and `held_out` are whole questions, `things` are named in a frame."""

    things: tuple[str, ...]
    asked: tuple[str, ...]
    held_out: tuple[str, ...]


def _of(things: str = "", asked: str = "", held_out: str = "") -> Phrasings:
    return Phrasings(*(questions._split(one) if one else () for one in (things, asked, held_out)))


def _grown(kind: str, asked: str = "", held_out: str = "", things: str = "") -> Phrasings:
    """The phrasings of `questions.py` for this kind, and more."""
    more = _of(things, asked, held_out)
    return Phrasings(
        (*questions.THINGS.get(kind, ()), *more.things),
        (questions.PLAIN[kind], *questions.QUESTIONS[kind], *more.asked),
        (*questions.HELD_OUT[kind], *more.held_out),
    )


_PAPERS = {
    "total": _grown(
        "total",
        "total? | how much | What do we have to transfer? | how much in total pls | What's the damage? | total pls",
        "What will this set me back? | how much all together",
        "invoice total | gross amount | total including tax | balance due",
    ),
    "date": _grown("date", "when | date pls | when was that? | What is today's date on it?", "which day is it from"),
    "company": _grown(
        "company",
        "Who sent this? | Who sent the bill? | who is it from | Who do I have to pay? | from whom is this? | "
        "Who wrote this invoice? | Which firm wants the money?",
        "Who wants to be paid? | Which business sent it?",
        "sender | supplier | company that sent it",
    ),
    "address": _grown(
        "address", "where is that | where are they | What street is the company in?", "where do they sit?"
    ),
    "price": _grown(
        "price",
        "how much for {item} | cost of {item}? | what's {item} going for? | Whats the price for {item}? | "
        "unit price of {item}? | What is the unit price of {item}? | How much is one {item}? | {item} costs how much?",
        "How expensive is {item}? | at what price is {item} sold?",
    ),
    "field": _grown(
        "field",
        "whats the {key} | {key} pls | Could you tell me the {key}? | Do you see a {key}? | What did they put as {key}? | "
        "What is entered for {key}? | Is there a {key}? Which? | Look for the {key} | Which {key}?",
        "What do we have for {key}? | Report the {key}.",
    ),
    "table": _grown(
        "table",
        "{row} {column}? | what {column} has {row} | In the row {row}, what is the {column}? | {column} {row} | "
        "Which value is in column {column} for {row}? | Read the {column} of {row}.",
        "Where {row} is listed, what is the {column}? | Find {row} and give its {column}.",
    ),
    "notice": _grown("notice", "what's in {which} | the {which} words?", "Which sentence is in {which}?"),
    "colour": _grown(
        "colour",
        "What color are the words {words}? | {words}: which colour? | Is {words} red or blue or what? | "
        "Name the colour of {words}. | the color of {words} | What is the colour of the text {words}? | "
        "Which colour do the letters of {words} have? | Give the colour of {words}",
        "How is {words} coloured?",
    ),
    "sign": _grown(
        "sign",
        "what's written there | Can you read it? | Please read this to me. | Which words are on the sign? | "
        "Read what it says | what does that say",
        "Which text is printed on it?",
    ),
    "heading": _grown(
        "heading",
        "title? | What is written at the top? | What heading does the page have? | whats the title | "
        "What is the title of this page? | Which words are the headline? | How is the page headed? | What's it titled?",
        "Under which title is it?",
        "page title | main heading",
    ),
    "invoice number": _of(
        "invoice number | invoice no | invoice no. | inv no | invoice # | number of the invoice | bill number | "
        "document number | invoice ID",
        "Which invoice is this? | What number does this invoice have? | invoice number? | inv nr? | "
        "How is the invoice numbered? | Under which number was it issued?",
        "What's the number on this bill? | Which number identifies the invoice?",
    ),
    "due date": _of(
        "due date | payment deadline | date by which to pay | last day to pay | date due",
        "When is it due? | By when do I have to pay? | When must it be paid? | until when can i pay | due when? | "
        "When does payment have to arrive? | How long do I have to pay? | When is payment due?",
        "What's the latest I can pay this? | pay by when?",
    ),
    "buyer": _of(
        "customer | buyer | name of the customer | recipient of the invoice | billed company | client | payer",
        "Who is billed? | Who is this invoice for? | Who has to pay? | To whom is it addressed? | bill to whom? | "
        "Who is the customer? | Who bought this? | Whom was it sent to? | billed to? | Who gets this bill?",
        "Who is being charged? | Whose bill is this to pay?",
    ),
    "buyer address": _of(
        "customer's address | billing address | address of the customer | buyer's address | address of the client",
        "Where does the customer live? | Where is the buyer located? | Where was the bill sent? | bill to address? | "
        "Where is the customer? | What is the address under bill to?",
        "At which address is the customer?",
    ),
    "subtotal": _of(
        "subtotal | net amount | amount before tax | total before tax | sum without VAT | net total",
        "How much is it before tax? | What is the sum without tax? | subtotal? | How much without VAT? | "
        "What do the items add up to before tax?",
        "What's the price excluding tax?",
    ),
    "tax": _of(
        "VAT | tax | tax amount | VAT amount | sales tax | amount of tax | value added tax",
        "How much tax is on it? | How much VAT is included? | How much is the VAT? | How much of it is tax? | tax? | vat? | "
        "What do I pay in taxes?",
        "How much goes to the tax office? | What's the tax on this?",
    ),
    "tax rate": _of(
        "tax rate | VAT rate | VAT percentage | rate of tax | percentage of tax",
        "How many percent VAT? | What percentage is the tax? | At which rate is it taxed? | vat % ? | "
        "How high is the tax rate?",
        "Which tax percentage was used?",
    ),
    "discount": _of(
        "discount | rebate | price reduction | amount of the discount",
        "How much was taken off? | How much discount did they get? | discount? | How much do I save?",
        "What was deducted?",
    ),
    "shipping": _of(
        "shipping cost | shipping | delivery charge | postage | freight",
        "How much is the delivery? | What does shipping cost? | How much is charged for delivery? | shipping?",
        "What do they take for sending it?",
    ),
    "quantity": _of(
        "",
        "How many {item} were ordered? | quantity of {item}? | How many {item}? | What is the quantity of {item}? | "
        "How many pieces of {item}? | qty {item} | How often is {item} on the bill? | number of {item} | "
        "How many units of {item} are there? | {item}: how many? | how many {item} did they buy | "
        "Give me the quantity for {item}. | Which quantity of {item} is listed?",
        "What count is given for {item}? | In what number was {item} bought?",
    ),
    "amount": _of(
        "",
        "What is the amount for {item}? | How much is {item} in total? | line total of {item}? | amount of {item} | "
        "What do all the {item} cost together? | What does {item} add to the bill? | {item} total? | "
        "What is the sum for {item}? | How much was charged for {item} altogether? | total for {item} | "
        "What is the line amount of {item}? | Give the amount of {item}.",
        "What did {item} come to? | How much of the bill is {item}?",
    ),
    "IBAN": _of(
        "IBAN | bank account | account number | account to pay to | bank account number",
        "Where do I send the money? | To which account should I pay? | iban? | Which account do they have? | "
        "Into which bank account does it go?",
        "What's the account to transfer it to?",
    ),
    "bank": _of(
        "bank | name of the bank | bank name | seller's bank",
        "Which bank do they use? | At which bank is the account? | bank? | What bank is it?",
        "Who keeps their account?",
    ),
    "BIC": _of(
        "BIC | SWIFT code | BIC code | SWIFT",
        "bic? | What is the bank's code? | Which BIC does the bank have?",
        "What is the swift number?",
    ),
    "reference": _of(
        "reference | payment reference | reference number | purpose of payment | reference to quote",
        "What should I write as reference? | ref? | What do I quote when I pay? | Which reference is given?",
        "What goes into the reference line?",
    ),
    "tax number": _of(
        "VAT number | tax ID | VAT ID | tax number | VAT registration number",
        "Which tax number does the seller have? | vat id? | What is their VAT number?",
        "Under which tax number are they registered?",
    ),
    "order number": _of(
        "order number | order no | purchase order | PO number | number of the order",
        "Which order is this for? | po? | Which order does it belong to?",
        "What is the order called by number?",
    ),
    "terms": _of(
        "payment terms | terms of payment | terms | conditions of payment",
        "What are the payment terms? | How is it to be paid? | On which terms do I pay? | terms?",
        "Under what conditions is it paid?",
    ),
    "phone": _of(
        "phone number | telephone number | phone | number to call | tel",
        "How can I call them? | Which number do I call? | phone? | What is their number? | At which number can I reach them?",
        "What do I dial?",
    ),
    "email": _of(
        "email | email address | e-mail | mail address",
        "How can I write to them? | mail? | What is their email? | Where can I send a mail?",
        "Which address do I mail?",
    ),
    "website": _of(
        "website | web address | homepage | URL",
        "What is their website? | Where are they on the web? | url? | Which site is given?",
        "Where do I find them online?",
    ),
}

_CHARTS = {
    "chart title": _of(
        "title | title of the chart | chart title | heading | caption of the chart",
        "What is the chart about? | What does the chart show? | How is the chart titled? | What is shown here? | title? | "
        "What is this a chart of? | What is plotted?",
        "Which subject does the graph have?",
    ),
    "x axis": _of(
        "label of the x axis | x axis label | horizontal axis label | name of the x axis | title of the horizontal axis",
        "What is on the x axis? | What does the horizontal axis show? | x axis? | What is along the bottom? | "
        "What does the x-axis represent?",
        "Which quantity runs to the right?",
    ),
    "y axis": _of(
        "label of the y axis | y axis label | vertical axis label | name of the y axis | title of the vertical axis",
        "What is on the y axis? | What does the vertical axis show? | y axis? | In which unit are the values? | "
        "What does the y-axis represent? | What is measured?",
        "Which quantity goes upwards?",
    ),
    "value": _of(
        "value of {name} | value for {name} | number for {name} | height of {name}",
        "How much is {name}? | {name}? | What is {name}'s value? | How high is {name}? | What is the value of {name}? | "
        "How large is {name}? | What number does {name} have? | What does the chart say for {name}? | {name} value",
        "Where does {name} stand? | How far does {name} reach?",
    ),
    "series value": _of(
        "value of {series} for {name} | {series} value of {name} | {series} in {name} | number of {series} at {name}",
        "How much is {series} in {name}? | {series}, {name}? | What is {series} for {name}? | How high is {series} at {name}? | "
        "In {name}, how much is {series}? | {name}: {series}? | What was {series} in {name}?",
        "What did {series} reach in {name}? | For {name}, where is {series}?",
    ),
    "largest": _of(
        "largest one | highest one | maximum | biggest one | tallest bar | top one | one with the highest value",
        "Which is the largest? | Which one is highest? | What has the highest value? | Who has the most? | biggest? | max? | "
        "Which has the most? | Where is the peak? | Which comes first? | What is the best one?",
        "Which leads? | What stands out at the top?",
    ),
    "smallest": _of(
        "smallest one | lowest one | minimum | one with the lowest value | shortest bar | least",
        "Which is the smallest? | Which one is lowest? | What has the lowest value? | Who has the least? | smallest? | min? | "
        "Which has the fewest? | Where is the minimum? | Which comes last?",
        "Which is at the bottom? | What falls behind all others?",
    ),
    "legend colour": _of(
        "colour of {series} | color for {series}",
        "Which colour is {series}? | What colour stands for {series}? | What color is {series}? | {series}: colour? | "
        "How is {series} drawn? | In which colour is {series} shown? | Which colour does {series} have in the legend?",
        "By which colour do I recognise {series}?",
    ),
    "legend series": _of(
        "meaning of {colour} | series in {colour}",
        "What does {colour} stand for? | What is shown in {colour}? | What does the {colour} one mean? | {colour} is what? | "
        "Which series is {colour}? | What does the {colour} colour represent? | {colour}?",
        "Who is the {colour} one?",
    ),
    "trend": _of(
        "trend of {series} | development of {series} | tendency of {series}",
        "Does {series} rise or fall? | How does {series} develop? | Is {series} going up? | trend of {series}? | "
        "Is {series} growing? | In which direction does {series} go? | How did {series} change? | "
        "Is {series} increasing or decreasing?",
        "Where is {series} heading? | Up or down: {series}?",
    ),
    "chart kind": _of(
        "kind of chart | type of chart | chart type | sort of diagram",
        "What kind of chart is this? | Is this a bar chart or a line chart? | Which type of plot is it? | "
        "What sort of graph is it?",
        "How are the data drawn?",
    ),
    "share": _of(
        "share of {name} | percentage of {name} | part of {name}",
        "How many percent is {name}? | How big is the share of {name}? | {name} percent? | What percentage is {name}? | "
        "What share does {name} have? | How large is the slice of {name}? | {name}?",
        "Which portion belongs to {name}?",
    ),
}

_SCREENS = {
    "setting": _of(
        "state of {name} | setting of {name} | status of {name} | {name} setting",
        "Is {name} on or off? | Is {name} on? | Is {name} enabled? | {name} on? | Is {name} turned on? | {name}? | "
        "What is {name} set to? | How is {name} set? | Is {name} active? | Did I switch {name} on? | Is {name} checked?",
        "Have I got {name} switched on? | Would {name} be active now?",
    ),
    "option": _of(
        "value of {name} | setting of {name} | choice for {name} | current {name}",
        "What is {name} set to? | Which {name} is selected? | Which {name} is chosen? | {name}? | How is {name} set? | "
        "What did I choose for {name}? | What {name} do I have? | Which value has {name}?",
        "What have I picked as {name}?",
    ),
    "entry": _of(
        "{name} | content of {name} | text in {name} | entry in {name} | value in the field {name}",
        "What is entered as {name}? | What did they type for {name}? | {name}? | What is in the field {name}? | "
        "What does the {name} field contain? | What is filled in for {name}? | Which {name} was entered?",
        "What have they put under {name}?",
    ),
    "message": _of(
        "message | error message | text of the message | error | warning | text of the dialog",
        "What does the message say? | What went wrong? | What is the error? | What does the dialog say? | error? | "
        "Why did it fail? | What happened? | What is the computer telling me? | Which error is shown? | whats the problem",
        "What's the trouble here? | What is it complaining about?",
    ),
    "error code": _of(
        "error code | error number | code of the error | code",
        "Which error code is shown? | code? | What number does the error have? | What is the code in the message?",
        "Which code do I give to support?",
    ),
    "window title": _of(
        "title of the window | window title | title bar | name of the window | name of the program",
        "Which window is this? | Which app is this? | What is the window called? | Which program is open? | app? | "
        "What does the title bar say?",
        "In which program am I?",
    ),
    "buttons": _of(
        "buttons | labels of the buttons | button labels | choices at the bottom",
        "Which buttons are there? | What can I click? | What can I press? | buttons? | What are my choices? | "
        "Which buttons does it have? | What do the buttons say?",
        "What could I click on here?",
    ),
    "main button": _of(
        "highlighted button | main button | default button | coloured button | primary button",
        "Which button is highlighted? | Which button is the default? | What does the coloured button say? | "
        "What do I click to go on? | Which button should I press to confirm?",
        "Which button stands out?",
    ),
    "tab": _of(
        "selected tab | active tab | current tab | open tab | active page | selected menu entry",
        "Which tab is open? | Which tab is selected? | Which tab am I on? | tab? | Which section is open? | "
        "Where am I in the menu?",
        "Which of the tabs is in front?",
    ),
    "file": _of(
        "",
        "What is the {column} of {row}? | {row}: {column}? | {column} of {row} | Which {column} does {row} have? | "
        "For {row}, what is the {column}? | What does it say under {column} for {row}? | {row}, {column} | "
        "Tell me {row}'s {column}. | whats the {column} for {row} | look up the {column} of {row} | "
        "Read the {column} of {row} | Give the {column} of {row}.",
        "What's listed as {column} next to {row}?",
    ),
}

_SCENES = {
    "where": _of(
        "place of the {thing_} | position of the {thing_} | location of the {thing_}",
        "Where is the {thing_}? | where's the {thing_} | Find the {thing_} | Where can I see the {thing_}? | {thing_}? | "
        "Where do you see the {thing_}? | Show me the {thing_}. | In which part is the {thing_}? | "
        "Where is the {thing_} in this picture? | Look at the {thing_}. | Point to the {thing_} | Where did the {thing_} go?",
        "Can you spot the {thing_}? | Whereabouts is the {thing_}?",
    ),
    "object colour": _of(
        "colour of the {thing_} | color of the {thing_}",
        "What colour is the {thing_}? | What color is the {thing_}? | Which colour does the {thing_} have? | "
        "{thing_} colour? | How is the {thing_} coloured? | Is the {thing_} red, blue or what? | color of the {thing_}? | "
        "Tell me which colour the {thing_} is. | Of what colour is the {thing_}? | whats the color of the {thing_}",
        "Describe the colour of the {thing_}. | In which colour is the {thing_} painted?",
    ),
    "count": _of(
        "number of {things_} | count of {things_}",
        "How many {things_} are there? | How many {things_}? | how many {things_} do you see | Count the {things_}. | "
        "{things_}: how many? | What is the number of {things_}? | How many {things_} can you count? | "
        "How many {things_} are in the picture? | Number of {things_}? | count {things_}",
        "What's the tally of {things_}?",
    ),
    "is there": _of(
        "",
        "Is there {a_thing}? | Do you see {a_thing}? | Can you see {a_thing}? | Is {a_thing} in the picture? | "
        "Does the picture show {a_thing}? | {a_thing}? | any {things_}? | Are there any {things_}? | Is {a_thing} there? | "
        "Is {a_thing} visible? | Do we have {a_thing} here? | Is there {a_thing} in the image?",
        "Has it got {a_thing} in it? | Would you say there is {a_thing}?",
    ),
    "relation": _of(
        "",
        "What is {relation} the {thing_}? | What do you see {relation} the {thing_}? | {relation} the {thing_}? | "
        "Which object is {relation} the {thing_}? | What stands {relation} the {thing_}? | what's {relation} the {thing_} | "
        "Which thing is {relation} the {thing_}? | Name the object {relation} the {thing_}. | "
        "What can be seen {relation} the {thing_}? | Tell me what is {relation} the {thing_}. | "
        "Is there something {relation} the {thing_}? | What is it that is {relation} the {thing_}?",
        "Looking {relation} the {thing_}, what do I find?",
    ),
    "coloured": _of(
        "{colour} thing | {colour} object",
        "What is {colour}? | Which object is {colour}? | Which thing is {colour}? | What do you see in {colour}? | "
        "What is the {colour} thing? | {colour} object? | Name the {colour} object. | What is painted {colour}?",
        "What has the colour {colour}?",
    ),
    "biggest": _of(
        "biggest object | largest thing | largest object",
        "What is the biggest thing? | Which object is largest? | What is largest in the picture? | biggest? | "
        "Which is the biggest object?",
        "What takes up the most room?",
    ),
    "sign text": _of(
        "text on the {thing_} | words on the {thing_} | writing on the {thing_}",
        "What does the {thing_} say? | What is written on the {thing_}? | Read the {thing_}. | {thing_} text? | "
        "Which words are on the {thing_}? | What can I read on the {thing_}?",
        "What's printed on the {thing_}?",
    ),
    "clock": _of(
        "time | time on the clock | time shown",
        "What time is it? | What does the clock show? | What time does the clock say? | How late is it? | time?",
        "Which hour is it?",
    ),
}

_WHOLE = {
    "whole": _of(
        "contents of this picture | gist of it | main content | summary",
        "Describe this. | What is this document about? | Summarise the page. | What is this? | What do you see? | "
        "Describe the picture. | Describe the image in detail. | What's in this image? | Summarize this. | "
        "What is shown here? | Give me an overview. | Tell me about this picture. | What can you see here? | "
        "Explain this to me. | what is this about | describe pls | What does this picture show? | Read everything. | "
        "What kind of document is this? | Caption this image. | tl;dr | What is going on here? | Transcribe the whole page. | "
        "What information is on this page?",
        "Put this in a few words. | Walk me through this page. | What are we looking at? | Sum it up.",
    ),
}

PHRASINGS: dict[str, Phrasings] = {**_PAPERS, **_CHARTS, **_SCREENS, **_SCENES, **_WHOLE}

# Other words for what forms and tickets call something else, so that a question need not repeat the printed word.
SYNONYMS: dict[str, tuple[str, ...]] = {
    key: questions._split(words)
    for key, words in (
        ("amount due", "amount to pay | balance due | open amount"),
        ("arrival", "arrival time | time of arrival"),
        ("booking code", "booking reference | reservation code"),
        ("carrier", "shipping company | transport company"),
        ("check-in", "check-in time | time of check-in"),
        ("contact", "contact person | person to contact"),
        ("customer", "client | customer's name"),
        ("date of birth", "birth date | birthday"),
        ("deliver to", "delivery address | address of delivery"),
        ("delivery date", "date of delivery | day of delivery"),
        ("departure", "departure time | time of departure"),
        ("destination", "place to go | final destination"),
        ("employer", "name of the employer | company somebody works for"),
        ("expiry date", "expiration date | last valid day"),
        ("floor", "floor number | storey"),
        ("from", "place of departure | starting point"),
        ("gate", "gate number | boarding gate"),
        ("issue date", "date of issue | day it was issued"),
        ("job", "job title | position | profession"),
        ("manager", "manager's name | person in charge"),
        ("mobile", "mobile number | cell phone"),
        ("name", "full name | person's name"),
        ("passenger", "passenger's name | traveller | name of the passenger"),
        ("patient", "patient's name | name of the patient"),
        ("platform", "platform number | track"),
        ("policy number", "insurance number | number of the policy"),
        ("recipient", "receiver | payee | addressee"),
        ("room", "room number | number of the room"),
        ("seat", "seat number | place to sit"),
        ("sender", "writer | person who sent it"),
        ("serial number", "serial no | S/N"),
        ("signed by", "signature | person who signed"),
        ("status", "current status | state"),
        ("subject", "subject line | topic | matter"),
        ("supplier", "vendor | seller"),
        ("ticket number", "ticket no | number of the ticket"),
        ("to", "place of arrival | destination"),
        ("tracking number", "parcel number | shipment number"),
        ("valid until", "expiry date | last day of validity"),
        ("weight", "mass | weight in all"),
    )
}

_SLOT = re.compile(r"(\{\w+\})")


@lru_cache(maxsize=256)
def templates(kind: str, held_out: bool = False) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """All phrasings of a kind with open slots: whole questions, and things in frames."""
    one = PHRASINGS[kind]
    frames = HELD_OUT_FRAMES if held_out else FRAMES
    framed = tuple(frame.replace("{thing}", thing) for thing in one.things for frame in frames)
    if held_out:
        return one.held_out, framed
    kept_back = {questions.normalize_phrasing(phrasing) for part in templates(kind, True) for phrasing in part}

    def trained(phrasings: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(p for p in phrasings if questions.normalize_phrasing(p) not in kept_back)

    return trained(one.asked), trained(framed)


def misspell(rng: random.Random, word: str) -> str:
    """The word with one typing error: two letters swapped, one left out, doubled, or replaced by its neighbour."""
    if len(word) < 4 or not word.isalpha():
        return word
    at = rng.randrange(1, len(word) - 1)
    style = rng.random()
    if style < 0.35:
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]
    if style < 0.65:
        return word[:at] + word[at + 1 :]
    if style < 0.85:
        return word[:at] + word[at] + word[at:]
    row = next(row for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm") if word[at].lower() in row)
    beside = row[(row.index(word[at].lower()) + 1) % len(row)]
    return word[:at] + beside + word[at + 1 :]


def _typed(rng: random.Random, template: str) -> str:
    """The template as somebody types it in a hurry: lower case, no punctuation, a greeting, a misspelt word."""
    style = rng.random()
    if style < 0.25:
        return template.lower()
    if style < 0.45:
        return template.rstrip("?.").lower()
    if style < 0.55:
        return template.rstrip("?.")
    if style < 0.65:
        return rng.choice(("Please: {}", "Hi, {}", "Hello! {}", "Quick question: {}", "{} Thanks!", "{} pls")).replace(
            "{}", template
        )
    if style < 0.7:
        return "".join(part if _SLOT.fullmatch(part) else part.upper() for part in _SLOT.split(template))
    parts = _SLOT.split(template)
    at = rng.randrange(0, len(parts), 2)  # text between slots
    words = parts[at].split(" ")
    longest = max(range(len(words)), key=lambda i: (len(words[i]), rng.random()))
    words[longest] = misspell(rng, words[longest])
    parts[at] = " ".join(words)
    return "".join(parts)


def say(rng: random.Random, kind: str, held_out: bool = False, literal: bool = False, **slots: object) -> str:
    """A question of `kind`, as a person types it, with its slots (`item`, `name`, ...) filled.

    `literal`: a field is asked for by its printed name, not by another word for it.
    """
    filled = {name: str(value) for name, value in slots.items()}
    if kind == "field" and not literal:
        key = filled["key"].lower()
        if key in PHRASINGS and rng.random() < 0.5:
            kind = key
        elif key in SYNONYMS and rng.random() < 0.3:
            filled["key"] = rng.choice(SYNONYMS[key])
    asked, framed = templates(kind, held_out)
    template = rng.choice(framed if framed and (not asked or rng.random() < 0.4) else asked)
    if rng.random() < 0.5 and not template.startswith("{"):
        template = template[0].upper() + template[1:]
    if rng.random() < 0.25:
        template = _typed(rng, template)
        if rng.random() < 0.4:
            filled = {name: value.lower() for name, value in filled.items()}
    return template.format(**filled)


@dataclass
class Asker:
    """Collects the questions about one page, each in a random phrasing."""

    rng: random.Random
    held_out: bool
    questions: list[PageQuestion] = field(default_factory=list)

    def ask(
        self, kind: str, answer: str, evidence: tuple[int, ...], others: tuple[tuple[int, ...], ...] = (), **slots: str
    ) -> None:
        """A question whose answer the lines in `evidence` give, or those of any of `others`."""
        asked = say(self.rng, kind, self.held_out, literal=False, **slots)
        self.questions.append(PageQuestion(kind, asked, answer, evidence, others, tuple(slots.items())))

    def ask_absent(self, kind: str, answer: str = NOT_FOUND, **slots: str) -> None:
        """A question about something that is not on the page."""
        asked = say(self.rng, kind, self.held_out, literal=False, **slots)
        self.questions.append(PageQuestion(kind, asked, answer, slots=tuple(slots.items()), absent=True))
